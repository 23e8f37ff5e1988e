"""A group of ranks that serves: the loop of each rank, and groups that outlive their ranks.

Knows nothing of how ranks are started, of HTTP or of Ray.
"""
