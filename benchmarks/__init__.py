"""Measurements of this project. `python -m benchmarks` lists them.

Each file in this folder is a command, except `__main__.py`; the folders beside them hold their helpers.
"""
