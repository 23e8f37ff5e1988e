"""Network latency: how the crossover is computed, and what is read from a sweep."""

from __future__ import annotations

import pytest

from benchmarks.network_delay import DelayMeasurement, crossover, describe, read_measurements, single_rank_speed
from launch.sweep.points import make_points
from launch.sweep.records import RankFigures, Run, TextRecord
from launch.sweep.settings import BenchSettings
from lp import Lookahead
from lp.model.checkpoint import ModelSettings
from lp.sampling.settings import Sampling
from parallel.mesh import Mode, ParallelSettings


def at(mode: str, delay_us: float, ms_per_token: float) -> DelayMeasurement:
    return DelayMeasurement(mode, "lookahead", delay_us, 1000 / ms_per_token, 1.0, 0.1)


def test_the_crossover_is_interpolated_in_time_per_token() -> None:
    measured = [at("lp", 0, 10), at("lp", 100, 10), at("tp", 0, 8), at("tp", 100, 16)]
    latency, how = crossover(measured)
    assert latency == pytest.approx(25) and how == "interpolated"


def test_the_crossover_lies_after_the_last_latency_at_which_tp_wins() -> None:
    """A single outlier does not hide it."""
    lp = [at("lp", delay, 10) for delay in (0, 100, 200)]
    latency, how = crossover([*lp, at("tp", 0, 11), at("tp", 100, 8), at("tp", 200, 12)])
    assert latency == pytest.approx(150) and how == "interpolated"


def test_the_crossover_beyond_what_was_measured_is_marked_so() -> None:
    latency, how = crossover([at("lp", 0, 10), at("lp", 100, 10), at("tp", 0, 5), at("tp", 100, 7.5)])
    assert latency == pytest.approx(200) and "extrapolated" in how


@pytest.mark.parametrize(
    ("tp", "how"),
    [((12, 20), "lp is faster at every"), ((5, 5), "tp is faster at every"), ((), "nothing was measured")],
)
def test_there_may_be_no_crossover(tp: tuple[float, ...], how: str) -> None:
    measured = [at("lp", 0, 10), at("lp", 100, 10), *(at("tp", 100 * n, ms) for n, ms in enumerate(tp))]
    latency, said = crossover(measured)
    assert latency is None and said.startswith(how)


def settings(mode: str, delay_us: float) -> BenchSettings:
    parallel = ParallelSettings(mode=Mode(mode), ranks=2, delay_us=delay_us)
    model = ModelSettings(path="model")
    return BenchSettings(model, Lookahead(), Sampling(temperature=0.0), parallel=parallel, baselines=[])


def test_a_sweep_is_read_by_mode_and_delay() -> None:
    points = make_points([settings(mode, delay) for mode in ("lp", "tp") for delay in (0.0, 200.0)])
    runs = []
    for number, point in enumerate(points):
        for seconds in (1.0, 2.0, 4.0):
            text = TextRecord("a", 5, tokens=20, steps=10, ttft_s=0.1, decode_s=seconds, digest="d")
            ranks = [RankFigures(rank, "cpu", 1, 1, 1, 10 * number, 0, 0.01 * (rank + 1)) for rank in range(2)]
            runs.append(Run(point.key, int(seconds), "done", None, [text], ranks, {"2": 10}, 50, seconds))
    measured = read_measurements(points, runs)
    assert [(m.mode, m.delay_us) for m in measured] == [("lp", 0.0), ("lp", 200.0), ("tp", 0.0), ("tp", 200.0)]
    assert {m.tokens_per_s for m in measured} == {10.0} and {m.ms_per_step for m in measured} == {2.0}
    assert [m.collectives_per_step for m in measured] == [1.0, 2.0, 3.0, 4.0]
    assert single_rank_speed(points, runs) == 10.0
    body, figure = describe(measured, 10.0)
    assert "| 200" in body and "1.00 |" in body and figure.axes
