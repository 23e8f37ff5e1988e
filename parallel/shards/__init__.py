"""The part of a model that one rank holds: slices of every layer (tp) or a run of layers (pp), and its weights.

Knows no token tree and no request.
"""
