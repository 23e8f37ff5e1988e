"""Tests of quantised weights."""
