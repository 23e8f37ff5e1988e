"""The parts of launch/tune.py: a trial run, the speed that the step times predict, and the tables that show both.

Knows no server, no supervisor and no Ray.
"""
