"""Drafts made by the library of lp/platform: what lp/drafting/drafter.py and the sources do, compiled.

The algorithm is in lp/platform/csrc/drafts.h. Here are the Python objects that hold its memory.
"""
