"""From logits to tokens: settings, processors, noise, and the ways to choose a row's token.

Knows no model, no window and no draft.
"""
