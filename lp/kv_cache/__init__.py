"""Where keys and values lie: one arena of pages on a GPU, a piece of memory for each sequence on a CPU.

This package knows nothing of models, trees or requests.
"""
