"""A Hugging Face checkpoint as a model that answers token trees, and the KV cache it writes to.

Knows no decoding method, no request and no other rank.
"""
