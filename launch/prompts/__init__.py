"""Where prompts come from: the command line, files, and well-known data sets.

Knows no engine and no rank.
"""
