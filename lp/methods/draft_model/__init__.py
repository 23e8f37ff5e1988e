"""decode=draft_model: which drafts are asked of a second model, what they are worth, and how the model computes them.

Every rank holds the second model whole and drafts by itself from the same tokens, so nothing of it is sent.
"""
