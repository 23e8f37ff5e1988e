"""A model's forward as a few fused Triton kernels: its program over rows, written as kernels that graphs capture.

All statements between two products become one kernel; attention has kernels of its own, and products are cuBLAS's.
This package knows nothing of any architecture. Triton is imported only where kernels are made.
"""
