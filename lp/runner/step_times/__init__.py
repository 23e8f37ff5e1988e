"""Measures step times on this machine and keeps them for later runs.

This package knows runners by their protocol alone, and no decoding method.
"""
