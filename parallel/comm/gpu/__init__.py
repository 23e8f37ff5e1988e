"""What collectives need on a GPU alone: who watches that they end, and sums through symmetric memory.

This package knows nothing of models, and nothing of exchanges between hosts.
"""
