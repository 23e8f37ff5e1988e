"""The parts of launch/tune.py: a trial run, what the step times expect of it, and the tables that show both."""
