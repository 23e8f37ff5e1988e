"""Scores that are made of two models' logits, or of one model's at two temperatures. Knows nothing of where they come
from.
"""
