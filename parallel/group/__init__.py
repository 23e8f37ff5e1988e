"""A group of ranks that serves: the loop of each, and groups that outlive their ranks.

Knows nothing of how ranks are started, of HTTP or of Ray.
"""
