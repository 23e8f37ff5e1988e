"""The first steps of every program: it reads its settings, prepares its process and assembles this rank's engine.

Knows no server, no sweep and no cluster.
"""
