"""Decoding methods: what a step's token tree hangs under the root, and what is learnt from its targets.

Knows no model, no device and no rank.
"""
