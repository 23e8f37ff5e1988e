"""Whose steps come next, and who waits for room for keys and values.

Knows nothing of what a step computes, or of where keys and values lie. All ranks decide alike.
"""
