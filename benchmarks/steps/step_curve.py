"""Measures forwards of growing numbers of rows, each way of running a model beside the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles

from benchmarks.shared.report import progress
from benchmarks.steps.floor import Gauge, Rates, time_once
from lp.calibration.measure import bushy_tree
from lp.model.causal import CausalModel
from lp.model.kv_cache import KVCache
from lp.tree import TokenTree, chain

PREFILL_CHUNK = 512
TIMED = 2
"""Forwards that are timed at a visit, after one that is not: steps of a generation follow upon their like."""


@dataclass(frozen=True)
class Point:
    """Forwards of so many rows on so many cached tokens, answers for all of them. seconds: of each."""

    way: str
    cached: int
    rows: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def middle_s(self) -> tuple[float, float]:
        """Between which the middle half of the forwards lies."""
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def measure(
    models: dict[str, CausalModel], caches: dict[int, KVCache], sizes: list[int], rounds: int, gauge: Gauge
) -> tuple[list[Point], Rates]:
    """Round by round over all points and the machine's own rates, so that whatever else keeps the machine busy for a
    while slows all alike. The first round is a warm-up.

    models: by way. caches: by the number of their tokens. sizes: numbers of rows.
    """
    points = [Point(way, cached, rows) for cached in caches for rows in sizes for way in models]
    bytes_per_s, flops_per_s = [], []
    for number in progress(range(1 + rounds), "measuring", unit="round"):
        bytes_per_s.append(gauge.read_bytes_per_s())
        flops_per_s.append(gauge.read_flops_per_s())
        for point in points:
            seconds = time_forwards(models[point.way], caches[point.cached], point.rows, TIMED)
            if number:
                point.seconds.extend(seconds)
    return points, Rates(median(bytes_per_s[1:]), median(flops_per_s[1:]))


def fill_cache(model: CausalModel, num_tokens: int, num_rows: int) -> KVCache:
    """A cache of made-up tokens, with room for a step's rows behind them."""
    cache = model.make_cache(num_tokens + num_rows)
    while rows := min(num_tokens - cache.length, PREFILL_CHUNK):
        tokens = range(cache.length, cache.length + rows)
        model.forward_eager(chain([token % model.vocab_size for token in tokens]), cache, num_logits=1)
        cache.keep(range(rows))
    return cache


def time_forwards(model: CausalModel, cache: KVCache, num_rows: int, num_timed: int) -> list[float]:
    """Seconds of each, after one that is not timed. A tree's rows are looked up once: planning is not the model's."""
    tree = make_tree(model, num_rows)
    run = partial(model.forward, tree, cache, num_rows)
    run()
    return [time_once(run, model.device) for _ in range(num_timed)]


def make_tree(model: CausalModel, num_rows: int) -> TokenTree:
    return bushy_tree(1, num_rows, model.vocab_size)


def fastest_way(points: list[Point]) -> str:
    """At the most rows, on the fewest cached tokens."""
    most = max(point.rows for point in points)
    return min((point for point in points if point.rows == most), key=lambda point: (point.cached, point.median_s)).way
