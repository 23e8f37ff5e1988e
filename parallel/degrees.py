"""Resolves how many ranks lie along each axis of the mesh: lookahead (lp), pipeline (pp) and tensor parallelism (tp).

Knows only the numbers, not the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

# The axes from the outermost to the innermost: neighbouring ranks share a tensor-parallel group.
AXES = ("lp", "pp", "tp")


class Mode(StrEnum):
    """The axis that takes all ranks that the given degrees leave over, and how replicas share batches.

    auto: pp if its given degree is above 1, otherwise lp; along lp, replicas share a batch so that the one with the
    most rows has as few as possible, and under a supervisor they do not share batches while there are many requests.
    lp: every tree is shared by all replicas. dp: every request is computed by one replica; these lie along lp as well.
    single: there is one rank.
    """

    auto = "auto"
    single = "single"
    lp = "lp"
    dp = "dp"
    tp = "tp"
    pp = "pp"


def resolve_degrees(mode: Mode, given: Mapping[str, int | None], num_ranks: int) -> dict[str, int]:
    """Returns the degree of each axis in use; an axis that is left out has degree 1.

    given: each axis's degree in the settings, None if they do not give one. Raises ValueError if the degrees cannot be
    combined or do not fit the number of ranks; its message names the numbers and the remedy.
    """
    _check_single(mode, num_ranks)
    _check_whole(mode, given)
    filler = _filler(mode, given)
    degrees = {axis: 1 if (degree := given.get(axis)) is None else degree for axis in AXES}
    if given.get(filler) is None:
        degrees[filler] = max(1, num_ranks // max(1, math.prod(degrees.values())))
    resolved = {axis: degree for axis, degree in degrees.items() if degree != 1 or axis == filler}
    _check_combination(resolved)
    check_product(resolved, num_ranks)
    return resolved


def _filler(mode: Mode, given: Mapping[str, int | None]) -> str:
    """Returns the axis that takes all ranks that the given degrees leave over."""
    if mode in (Mode.tp, Mode.pp):
        return mode.value
    return "pp" if mode is Mode.auto and (given.get("pp") or 1) > 1 else "lp"


def _check_single(mode: Mode, num_ranks: int) -> None:
    if mode is Mode.single and num_ranks > 1:
        raise ValueError(
            f"parallel.mode=single uses one rank, but {num_ranks} were started (WORLD_SIZE={num_ranks}): use "
            "parallel.mode=lp, or start one process without torchrun"
        )


def _check_whole(mode: Mode, given: Mapping[str, int | None]) -> None:
    if mode is Mode.dp and (stages := given.get("pp") or 1) > 1:
        raise ValueError(
            f"parallel.mode=dp gives requests to replicas, which cannot be split into parallel.pp={stages} stages: "
            "leave one of them out (parallel.tp can be combined with dp)"
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


def name_mode(degrees: Mapping[str, int], mode: Mode = Mode.auto) -> str:
    """The name of the parallelism that these degrees mean: single, lp, tp, pp or lp x tp; in the mode dp, dp for lp."""
    used = [axis for axis in AXES if degrees.get(axis, 1) > 1]
    return " x ".join("dp" if axis == "lp" and mode == Mode.dp else axis for axis in used) or "single"


# What each axis means for the ranks along it, by the mode where it decides.
MEANINGS = {
    "lp": "each replica holds the whole model and computes a part of every step",
    "dp": "each replica holds the whole model and computes the requests that it is given",
    "auto": "each replica holds the whole model; they share a stream's steps, or the streams if there are many",
    "pp": "each stage holds some of the layers",
    "tp": "each rank holds a part of every layer",
}


def explain(degrees: Mapping[str, int], mode: Mode) -> str:
    """The degrees above 1 and what they mean; for the mode `auto` also what to use if the model does not fit."""
    used = {axis: degree for axis, degree in degrees.items() if degree > 1}
    told = " x ".join(f"{axis}={degree}" for axis, degree in used.items())
    along_lp = mode.value if mode in (Mode.auto, Mode.dp) else "lp"
    told += f" ({'; '.join(MEANINGS[along_lp if axis == 'lp' else axis] for axis in used)})"
    if mode is Mode.auto and set(used) == {"lp"}:
        told += ", chosen by parallel=auto; parallel=tp is for a model that does not fit one device"
    return told
