"""Many streams on several ranks, on paper: benchmarks/projections/load.py reports what these parts compute.

Engine, budget and shares are the real ones; ranks, time and the model's answers are played.
"""
