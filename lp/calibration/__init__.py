"""Step times measured on this machine, and kept for later runs.

Knows runners by their protocol alone, and no decoding method.
"""
