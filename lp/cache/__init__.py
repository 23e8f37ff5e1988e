"""What lies in the cache of files (lp/cache_files.py): which entries, which are in use, which go when it is full.

This package knows where entries lie and how large they are, and nothing of what they hold.
"""
