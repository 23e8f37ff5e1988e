"""Tests of lp/methods/auto."""
