"""A model's forward compiled for the CPU: its program over rows, written as C++ into one native function.

Functions of single rows are written for each model; products and attention have kernels of their own. This package
knows nothing of any architecture or tree policy.
"""
