"""Tests of what only a GPU needs, without a GPU."""
