"""A model's forward as one native function for the CPU: recorded from the model, written as C++, compiled once.

The model is run once and its operations are recorded. All of them but attention and the products with weights treat
every row by itself, so they become functions of one row; products and attention have kernels of their own. This package
knows PyTorch's operations and nothing of any architecture, tree or cache policy.
"""
