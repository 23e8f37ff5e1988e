"""Lookahead decoding on one device: the algorithm, the model adapter and the engine.

Knows no other rank, no configuration file and no HTTP.
"""

from lp.engine import Engine
from lp.methods import Auto, Autoregressive, DecodeLimits, Jacobi, Lookahead, PromptLookup
from lp.request import Completion, Progress
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping

__all__ = [
    "Auto",
    "Autoregressive",
    "Completion",
    "DecodeLimits",
    "Engine",
    "Jacobi",
    "Lookahead",
    "Progress",
    "PromptLookup",
    "Sampling",
    "Stopping",
]
