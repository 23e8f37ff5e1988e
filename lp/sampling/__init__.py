"""Turns logits into tokens: settings, processors, noise, and the choosers of a row's token.

This package knows no model, no window and no draft.
"""
