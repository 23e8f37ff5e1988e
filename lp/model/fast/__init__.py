"""Faster versions of a model's forward: compiled ahead of time on a CPU, captured as CUDA graphs on a GPU.

This package knows how a forward is run, and nothing of what its rows mean.
"""
