"""Decoding with drafts of a second model: which drafts are asked of it, and what they are worth.

Knows no model: what computes drafts keeps the interface in `base.py`, and lp/draft_model has it.
"""
