"""The programs: a file here is a command, and what commands share lies in the packages.

No other package knows Hydra, HTTP, Ray or terminals.
"""
