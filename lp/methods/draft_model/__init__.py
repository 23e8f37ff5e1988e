"""decode=draft_model: which drafts are asked of a second model, what they are worth, and how the model computes them.

Every rank holds the second model whole. Either all ranks draft by themselves from the same tokens, before a step, and
nothing is sent; or those without a part in a step draft ahead of it, and send what they find (ahead.py).
"""
