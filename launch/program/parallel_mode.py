"""How many ranks a program starts for the parallel settings, and what the mode of parallelism is called."""

from __future__ import annotations

from parallel.degrees import Mode, name_mode
from parallel.mesh import ParallelSettings


def num_ranks(parallel: ParallelSettings) -> int:
    """The number of ranks to start: one in single mode, else parallel.ranks or the product of the degrees."""
    return 1 if Mode(parallel.mode) is Mode.single else parallel.wanted_ranks


def mode_of(parallel: ParallelSettings, ranks: int) -> str:
    """See name_mode; for degrees that are impossible, the mode that was asked for."""
    try:
        degrees = parallel.resolve_degrees(ranks)
    except ValueError:
        return str(parallel.mode)
    return name_mode(degrees, Mode(parallel.mode))
