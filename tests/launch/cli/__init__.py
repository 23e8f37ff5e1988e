"""Tests of the command `lookahead`."""
