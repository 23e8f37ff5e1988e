"""What a program shows of its results: streamed text on a terminal, or lines of JSON.

Knows no engine and no rank.
"""
