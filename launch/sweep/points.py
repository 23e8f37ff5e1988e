"""Makes the points of a sweep from its settings, baselines included, and puts their measurements in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

from launch.config.engine_settings import mode_of, num_ranks
from launch.sweep.records import EngineName, Point
from launch.sweep.settings import BenchSettings, to_json_values
from lp.methods.registry import BASELINE
from lp.model.attention import AttentionSettings
from lp.request import DecodeLimits
from parallel.mesh import Mode, ParallelSettings, resolve_degrees

# With more ranks per core, steps would spend their time waiting for time slices.
RANKS_PER_CORE = 8
NAMES: dict[EngineName, str] = {
    "generate": "transformers generate",
    "generate_static": "transformers generate, static cache",
    "prompt_lookup": "transformers prompt look-up",
    "assisted": "transformers assisted generation",
}


def make_points(spanned: Sequence[BenchSettings]) -> list[Point]:
    """Makes the points of the settings. Points that are compared with them come first.

    For every model and workload, these are the baselines and autoregressive decoding on one rank.
    """
    asked = [runtime_point(settings) for settings in spanned]
    bases: dict[str, Point] = {}
    for settings in spanned:
        for point in [baseline_point(settings, cast(EngineName, name)) for name in settings.baselines]:
            bases.setdefault(point.key, point)
        alone = dataclasses.replace(settings, decode=BASELINE(), parallel=ParallelSettings(Mode.single), concurrency=1)
        bases.setdefault((point := runtime_point(alone)).key, point)
    return list({point.key: point for point in [*bases.values(), *asked]}.values())


def runtime_point(settings: BenchSettings) -> Point:
    """Makes a point of this project's runtime."""
    ranks = num_ranks(settings.parallel)
    parallel = dataclasses.replace(settings.parallel, ranks=ranks, mode=Mode(settings.parallel.mode))
    if parallel.mode is Mode.single:  # how ranks communicate makes no difference
        parallel = ParallelSettings(Mode.single, parallel.lp, parallel.tp, parallel.pp, ranks)
    decisive = to_json_values(dataclasses.replace(settings, parallel=parallel, assistant=None))
    return Point("runtime", mode_of(parallel, ranks), ranks, settings.decode.label, decisive)


def baseline_point(settings: BenchSettings, name: EngineName) -> Point:
    """Makes a point of transformers: one rank, one request at a time, no settings that only this project has."""
    assistant = settings.assistant if name == "assisted" else None
    plain = dataclasses.replace(settings, decode=BASELINE(), parallel=ParallelSettings(), concurrency=1)
    plain = dataclasses.replace(plain, attention=AttentionSettings(), limits=DecodeLimits(), assistant=assistant)
    return Point(name, "single", 1, NAMES[name], to_json_values(plain))


def check_ranks(point: Point, num_cores: int) -> None:
    """Raises ValueError if the ranks do not fit the degrees of the point or are far too many for the machine."""
    parallel = point.settings["parallel"]
    most = RANKS_PER_CORE * num_cores
    if point.ranks > most:
        raise ValueError(
            f"{point.ranks} ranks are too many for {num_cores} core(s): use parallel.ranks={most} or fewer"
        )
    resolve_degrees(Mode(parallel["mode"]), parallel, point.ranks)


def schedule(points: Sequence[Point], rounds: int, done: set[tuple[str, int]]) -> Iterator[tuple[int, Point]]:
    """Yields (round, point) in the order of measurement. Each round begins one point later than the round before.

    done: the (key of the point, round) that are left out because they have been measured.
    """
    for number in range(rounds):
        first = number % len(points)
        for point in [*points[first:], *points[:first]]:
            if (point.key, number) not in done:
                yield number, point
