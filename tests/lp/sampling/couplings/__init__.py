"""Tests of lp/sampling/couplings."""
