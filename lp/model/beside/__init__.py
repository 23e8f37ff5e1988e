"""A second causal model beside the first one, on every rank: its settings, its vocabulary and how it is loaded.

What it is for (drafts, a comparison of its probabilities) is not known here.
"""
