"""Drafts retrieved from a corpus of texts, as in REST (He et al. 2023, arXiv 2311.08252).

What was read from its file never changes, so all requests share it.
"""
