"""Hugging Face checkpoints as models that answer token trees, and the KV cache that they write to.

This package knows no decoding method, no request and no other rank.
"""
