"""What this machine has: its hardware, the cache on its disk, its compilers, and the compiled work of the host.

Knows no model and no decoding method. The C++ of the host's work is in csrc/.
"""
