"""The same forward made fast: compiled ahead of time on a CPU, captured as CUDA graphs on a GPU.

Knows how a model's forward is run, and nothing of what its rows mean.
"""
