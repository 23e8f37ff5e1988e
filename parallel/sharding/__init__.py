"""The part of a model that one rank holds and how it is read: a slice of every layer (tp), or some of the layers (pp).

Knows no token tree and no request.
"""
