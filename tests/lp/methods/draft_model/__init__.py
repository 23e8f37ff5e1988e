"""Tests of lp/methods/draft_model."""
