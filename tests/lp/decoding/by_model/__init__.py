"""Tests of lp/decoding/by_model."""
