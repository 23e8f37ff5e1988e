"""The programs on a Ray cluster: ranks and front ends as actors, under the same supervisor as on one machine.

The only place, beside the sweep's measurer, that imports Ray.
"""
