"""Drafts made by the library of lp/host: what lp/drafting/drafter.py and the sources do, compiled.

The algorithm is in lp/host/source/drafts.h. Here are the Python objects that hold its memory.
"""
