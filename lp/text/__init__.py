"""From tokens to text: whole characters as they come, and where a text ends.

Knows no model, no decoding method and no rank.
"""
