"""Measurements of this project, a command each: `python -m benchmarks` lists them.

Files of this folder are commands; what they share lies in the folders beside them.
"""
