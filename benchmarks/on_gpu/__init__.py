"""The parts of benchmarks.gpu: which items there are, how each is run in a process of its own, what is shown of them.

`probe.py` and `steps.py` are the programs of items. All other modules import the standard library alone, as a machine
may lack some of the packages that this project needs.
"""
