"""Measurements of this project. `python -m benchmarks` lists them.

Each file in this folder is a command, except `__main__.py`, and so are the folder `gpu/` and each file of another
folder that has a `main`. All other files in the folders hold helpers.
"""
