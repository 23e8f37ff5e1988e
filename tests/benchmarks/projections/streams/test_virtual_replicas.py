"""What played replicas have to do in a step, counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.projections.network import Network
from benchmarks.projections.streams.virtual_replicas import Load, PlayedStep, played
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.step_cost import Extras, StepTimes
from lp.tree import NO_ROWS, chain
from parallel.comm.rows import HEADER
from parallel.runners.shares import Shares
from parallel.runners.sharing import Sharing

CURVE = StepTimes((1, 101), (1.0, 2.0), extras=Extras(sequence=0.5, thousand_cached=0.25))


def step_of(name: str, length: int, num_rows: int) -> StepInput:
    sequence = Sequence(name, list(range(length)), 2, Sampling.greedy())
    return StepInput.of(sequence, chain(list(range(num_rows))), 8)


def test_lags_count_as_rows_and_sequences_where_something_is_computed() -> None:
    steps = [step_of("a", 301, 4), step_of("b", 101, 2)]
    shares = [Shares({0: [0, 1, 2], 1: [0, 3]}, {2: 299}), Shares({1: range(2)}, {0: 50, 2: 60})]
    found = played(steps, [[300, 297, 290], [70, 100, 0]], shares, 4)
    # Replica 1 lacks three tokens of a; replica 0 has the tokens of b that it would have been fed.
    assert found.loads == [Load(3, 1, 301), Load(2 + 3 + 2, 2, 402), Load(9 + 60, 2, 402), Load()]
    assert found.exchanged == (2 + 2) * 8


def test_a_step_takes_as_long_as_its_slowest_replica_and_the_exchange() -> None:
    step = PlayedStep([Load(51, 3, 1256), Load(101, 1, 256), Load()], exchanged=100)
    assert step.loads[0].seconds(CURVE) == pytest.approx(1.5 + 2 * 0.5 + 0.25)
    assert step.loads[1].seconds(CURVE) == pytest.approx(2.0) and step.loads[2].seconds(CURVE) == 0
    network = Network(latency_us=1e5, gb_per_s=1e-6)
    assert step.seconds(CURVE, network) == pytest.approx(2.75 + 0.1 + 4 * (HEADER + 100) * 2 / 1e3)
    assert PlayedStep([Load(51, 1, 256)]).seconds(CURVE, network) == pytest.approx(1.5)


def test_replicas_share_many_streams_as_real_ones_do() -> None:
    steps, level = [step_of(str(number), 50, 2) for number in range(8)], [[49] * 4 for _ in range(8)]
    found = played(steps, level, Sharing().share(steps, level), 4)
    assert max(load.rows for load in found.loads) == 16, "a chain cannot be split"
    prompt = StepInput(Sequence("p", list(range(30)), 30, Sampling.greedy()), NO_ROWS, 20)
    found = played([prompt], [[0, 0]], Sharing().share([prompt], [[0, 0]]), 2)
    assert [load.rows for load in found.loads] == [20, 20] and found.exchanged == 0
