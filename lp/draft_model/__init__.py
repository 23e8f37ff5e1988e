"""Drafts computed by a second model: its forwards, its keys and values, its probabilities.

Every rank holds the second model whole and drafts by itself from the same tokens, so nothing of it is sent. Which
drafts are asked for, and which of them a step takes, is decided in lp/decoding/by_model.
"""
