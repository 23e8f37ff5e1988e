"""C++ that is compiled on this machine and kept, and what it does for the host between two steps.

Its sources for the host are in source/. Knows no model and no decoding method; the Python code that it replaces runs
where there is no compiler.
"""
