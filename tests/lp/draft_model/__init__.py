"""Tests of lp/draft_model."""
