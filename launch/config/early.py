"""Starts to compile what a model needs on every machine, when it is imported, if that is missing.

A program that loads a model imports this module before others: PyTorch takes seconds to import, and one core.
"""

from lp.platform.host import begin

begin()
