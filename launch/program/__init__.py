"""What every program does first: settings from the command line, its own process, this rank's engine.

Knows no server, no sweep and no cluster.
"""
