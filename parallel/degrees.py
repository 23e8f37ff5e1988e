"""How many ranks lie along each axis of the mesh: lookahead (lp), pipeline (pp) and tensor parallelism (tp).

Knows the numbers alone, not the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

AXES = ("lp", "pp", "tp")
"""From the outermost to the innermost: neighbouring ranks share a tensor-parallel group."""


class Mode(StrEnum):
    """The axis that takes the ranks for which no degree says otherwise. auto: lp. single: there is one rank."""

    auto = "auto"
    single = "single"
    lp = "lp"
    tp = "tp"
    pp = "pp"


def resolve_degrees(mode: Mode, given: Mapping[str, int | None], num_ranks: int) -> dict[str, int]:
    """The degree of each axis; what is left out has one rank.

    given: what the settings say of each axis, None for nothing. Raises ValueError, with the numbers and the mend, if
    the degrees are impossible together or do not fit the number of ranks.
    """
    _check_single(mode, num_ranks)
    filler = _filler(mode, given)
    degrees = {axis: 1 if (degree := given.get(axis)) is None else degree for axis in AXES}
    if given.get(filler) is None:
        degrees[filler] = max(1, num_ranks // max(1, math.prod(degrees.values())))
    settled = {axis: degree for axis, degree in degrees.items() if degree != 1 or axis == filler}
    _check_combination(settled)
    check_product(settled, num_ranks)
    return settled


def _filler(mode: Mode, given: Mapping[str, int | None]) -> str:
    """The axis that takes the ranks of which no degree speaks."""
    if mode in (Mode.tp, Mode.pp):
        return mode.value
    return "pp" if mode is Mode.auto and (given.get("pp") or 1) > 1 else "lp"


def _check_single(mode: Mode, num_ranks: int) -> None:
    if mode is Mode.single and num_ranks > 1:
        raise ValueError(
            f"parallel.mode=single uses one rank, but {num_ranks} were started (WORLD_SIZE={num_ranks}): use "
            "parallel.mode=lp, or start one process without torchrun"
        )


def _check_combination(degrees: Mapping[str, int]) -> None:
    others = " and ".join(f"parallel.{axis}={degrees[axis]}" for axis in degrees if axis != "pp" and degrees[axis] > 1)
    if degrees.get("pp", 1) != 1 and others:
        raise ValueError(
            f"parallel.pp={degrees['pp']} cannot be combined with {others}: leave one of them out (lp and tp can be "
            "combined)"
        )


def check_product(degrees: Mapping[str, int], num_ranks: int) -> None:
    """Raises ValueError unless the degrees multiply to the number of ranks."""
    for axis, degree in degrees.items():
        if degree < 1:
            raise ValueError(f"parallel.{axis}={degree} must be at least 1; leave it out to use all ranks")
    product = math.prod(degrees.values())
    if product != num_ranks:
        named = " * ".join(f"parallel.{axis}={degree}" for axis, degree in degrees.items())
        raise ValueError(
            f"{named} needs {product} rank(s), but there are {num_ranks}: start {product} (torchrun --nproc-per-node "
            f"{product}, or parallel.ranks={product} where they are started for you), or leave the degree out"
        )
