"""Measures forward passes by their number of rows, in each variant of the model, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles

from benchmarks.shared.report import progress
from benchmarks.steps.machine_rates import MachineRates, RateGauge, time_once
from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.runner.step_times.measure import bushy_tree
from lp.tree import TokenTree

# Forwards that are timed in a row, after one that is not: in a generation, steps also follow similar steps.
TIMED = 2


@dataclass(frozen=True)
class StepTimeSample:
    """Forwards of some rows on some cached tokens, with logits for all rows.

    way: the variant's name. seconds: one reading for each forward.
    """

    way: str
    cached: int
    rows: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def middle_s(self) -> tuple[float, float]:
        """The bounds of the middle half of the readings."""
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def measure_curve(
    models: dict[str, CausalModel], caches: dict[int, KVCache], sizes: list[int], rounds: int, gauge: RateGauge
) -> tuple[list[StepTimeSample], MachineRates]:
    """Measures all sizes and the machine's own rates in rounds, so that other work on the machine slows all alike.

    The first round is a warm-up. models: by the variants' names. caches: by the number of their tokens. sizes: numbers
    of rows.
    """
    points = [StepTimeSample(way, cached, rows) for cached in caches for rows in sizes for way in models]
    bytes_per_s, flops_per_s = [], []
    for number in progress(range(1 + rounds), "measuring", unit="round"):
        bytes_per_s.append(gauge.read_bytes_per_s())
        flops_per_s.append(gauge.read_flops_per_s())
        for point in points:
            seconds = time_forwards(models[point.way], caches[point.cached], point.rows, TIMED)
            if number:
                point.seconds.extend(seconds)
    return points, MachineRates(median(bytes_per_s[1:]), median(flops_per_s[1:]))


def time_forwards(model: CausalModel, cache: KVCache, num_rows: int, num_timed: int) -> list[float]:
    """Seconds of each of `num_timed` forwards, after one that is not timed.

    All use the same tree, because planning is not the model's work.
    """
    tree = make_tree(model, num_rows)
    run = partial(model.forward, tree, cache, num_rows)
    run()
    return [time_once(run, model.device) for _ in range(num_timed)]


def make_tree(model: CausalModel, num_rows: int) -> TokenTree:
    return bushy_tree(1, num_rows, model.vocab_size)


def fastest_variant(points: list[StepTimeSample]) -> str:
    """The name of the variant that is fastest at the most rows, on the fewest cached tokens."""
    most = max(point.rows for point in points)
    return min((point for point in points if point.rows == most), key=lambda point: (point.cached, point.median_s)).way
