"""Weights of 4 to 8 bits: how their numbers are stored, where they are read from, and modules that hold them.

A quantised weight stays as it is stored until a device's kernels are given it in their own order. It is unpacked as a
whole only on a GPU on which no kernels of ours run.
"""
