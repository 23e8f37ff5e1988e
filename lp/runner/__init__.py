"""Runners compute the answers for token trees: their interface, the one for a single device, and their step times.

No runner knows what a window or a draft is.
"""
