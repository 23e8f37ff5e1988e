"""A model's forward as one native function for the CPU: its program over rows, written as C++ and compiled once.

Functions of single rows are written for each model; products and attention have kernels of their own. This package
knows nothing of any architecture, tree or cache policy.
"""
