"""A model's forward on a GPU: its program over rows as a few fused Triton kernels, captured as CUDA graphs.

All statements between two products become one kernel; attention has kernels of its own, and so have products with
quantised weights. Other products are cuBLAS's, or those of a kernel that is faster for few rows.
This package knows nothing of any architecture. Triton is imported only where kernels are made.
"""
