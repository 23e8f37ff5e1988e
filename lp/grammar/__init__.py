"""Grammars that a text must keep: compiled once, followed token by token along a tree.

Knows neither models nor requests nor how trees are planned.
"""
