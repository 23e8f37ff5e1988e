"""Where keys and values lie: one arena of pages on a GPU, a piece of memory for each sequence on a CPU; and the states
of recurrent layers.

This package knows nothing of models, trees or requests.
"""
