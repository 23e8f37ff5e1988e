"""Decoding methods: each plans the token tree of a step and learns from the tokens that the model answers.

Knows no model, no device and no rank.
"""
