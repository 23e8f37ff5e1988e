"""The sweep of launch/bench.py: it makes points, measures them on ranks, and reports their figures."""
