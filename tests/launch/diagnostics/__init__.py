"""Tests of what `lookahead doctor` finds out."""
