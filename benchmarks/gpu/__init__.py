"""The command `python -m benchmarks.gpu` and its parts: its items, how each is run in a process of its own, reports.

`probe.py`, `steps.py`, `packed.py` and `prompts.py` are the programs of items. All other modules import the standard
library alone, as a machine may lack some of the packages that this project needs.
"""
