"""Runners over several ranks: lookahead and pipeline parallelism, and the partition of a token tree.

Knows no decoding method, and nothing of how ranks are started.
"""
