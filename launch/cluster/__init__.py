"""The programs on a Ray cluster: ranks and front ends are actors, under the same supervisor as on one machine.

Beside the sweep's ray_measurer.py and ray_rank.py, only this package imports Ray.
"""
