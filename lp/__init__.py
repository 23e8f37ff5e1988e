"""Lookahead decoding on one device: the algorithm, the model adapter and the engine.

Knows no other rank, no configuration file and no HTTP. The names below are imported when they are first used, so that a
module that needs no model, such as lp.cache, is imported without PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lp.engine import Engine
    from lp.grammar.settings import Grammar
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
    "Grammar",
    "Jacobi",
    "Lookahead",
    "Progress",
    "PromptLookup",
    "Sampling",
    "Stopping",
]

# The modules of the names that are not settings of a decoding method.
_MODULES = {
    "Completion": "lp.request",
    "Engine": "lp.engine",
    "Grammar": "lp.grammar.settings",
    "Progress": "lp.request",
    "Sampling": "lp.sampling.settings",
    "Stopping": "lp.text.stopping",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "lp.methods")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
