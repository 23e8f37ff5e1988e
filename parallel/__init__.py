"""Ranks working together: mesh, exchanges, tree partition and the parallel runners.

Knows nothing of HTTP, Hydra or Ray.
"""
