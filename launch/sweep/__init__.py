"""The sweep of launch/bench.py: it makes points, measures them on ranks, and reports their figures.

Knows no server and no supervisor. Only ray_measurer.py and ray_rank.py import Ray.
"""
