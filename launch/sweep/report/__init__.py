"""What a sweep shows of its measurements: figures of each point, as tables, as plots and as one HTML file.

Knows nothing of how points are measured.
"""
