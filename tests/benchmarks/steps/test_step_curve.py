"""Step times by rows: what is timed, and how the readings are summarised."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.shared.filled_cache import fill_cache
from benchmarks.steps import step_curve
from benchmarks.steps.machine_rates import RateGauge
from benchmarks.steps.step_curve import TIMED, StepTimeSample, fastest_variant, measure_curve
from lp import Engine


def test_what_is_timed_for_a_point_is_its_rows_on_its_cached_tokens(
    llama: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(run: partial[Any], device: torch.device) -> float:
        tree, cache, num_logits = run.args
        run()
        assert len(tree) == num_logits
        return 1000.0 * cache.length + len(tree)

    monkeypatch.setattr(step_curve, "time_once", count)
    gauge = RateGauge(torch.device("cpu"), torch.float32, num_bytes=1 << 20)
    model = llama.checkpoint.model
    caches = {cached: fill_cache(model, cached, 128) for cached in (8, 300)}
    points, _ = measure_curve({"it": model}, caches, [1, 128], rounds=3, gauge=gauge)
    assert [(point.cached, point.rows) for point in points] == [(8, 1), (8, 128), (300, 1), (300, 128)]
    assert all(point.seconds == 3 * TIMED * [1000 * point.cached + point.rows] for point in points)


def test_the_middle_half_lies_about_the_median() -> None:
    point = StepTimeSample("a", 8, 1, [5.0, 1.0, 2.0, 4.0, 3.0])
    assert (point.median_s, point.middle_s) == (3.0, (2.0, 4.0))


def test_the_fastest_variant_is_that_of_the_largest_step() -> None:
    taken = {("a", 8, 1): 1.0, ("b", 8, 1): 2.0, ("a", 8, 64): 9.0, ("b", 8, 64): 8.0, ("a", 99, 64): 1.0}
    assert fastest_variant([StepTimeSample(*place, [seconds]) for place, seconds in taken.items()]) == "b"
