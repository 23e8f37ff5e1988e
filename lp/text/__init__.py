"""Turns tokens into text, in whole characters, and finds where a text ends.

This package knows no model, no decoding method and no rank.
"""
