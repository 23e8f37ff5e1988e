"""A model's forward as a program over rows: recorded from the model, and lowered to statements, products and attention.

A model is run once and its operations are recorded. All of them but attention and the products with weights treat every
row by itself. This package knows PyTorch's operations and nothing of any architecture, tree, cache policy or device:
`lp/model/cpu/` writes programs as C++ for a CPU, `lp/model/gpu/` as kernels for a GPU.
"""
