"""Fused kernels on a CPU: their results in Triton's interpreter, and what Triton's compiler makes of them."""
