"""The report of a sweep: the figures of each point in tables, in plots and in one HTML file.

This package knows nothing of how points are measured.
"""
