"""Runners over several ranks: lookahead and pipeline parallelism, and how a token tree is split.

Knows no decoding method, and nothing of how ranks are started.
"""
