"""The arithmetic of a projection on recordings made by hand: slowest parts, medians, latencies and bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import Charges, Network, all_gather, all_reduce
from benchmarks.projections.projected_speed import Projection, ProjectionCase, StepTotals, fastest, project
from benchmarks.projections.virtual_ranks import RecordedStep, RecordedText
from lp.request import Sequence
from lp.sampling.settings import Sampling
from lp.tree import chain

NETWORK = Network(latency_us=100, gb_per_s=2)


def recording(seconds: list[tuple[float, ...]], rest_s: float, charges: Charges = Charges(1, 500)) -> RecordedText:  # noqa: B008
    """A recording of a prompt of two tokens and two new tokens for each step."""
    tokens = list(range(2 + 2 * len(seconds)))
    steps = [
        RecordedStep(2 + 2 * number, chain([0]), parts, 10 * (number + 1), charges)
        for number, parts in enumerate(seconds)
    ]
    return RecordedText(Sequence("a", tokens, 2, Sampling()), steps, rest_s)


def test_collectives_cost_latency_and_bytes() -> None:
    assert NETWORK.seconds(Charges(3, 4e6)) == pytest.approx(3e-4 + 2e-3)
    assert all_reduce(1000, 4) == Charges(1, 1500)
    assert all_gather(1000, 4) == Charges(1, 3000)
    assert all_reduce(1000, 1) == all_gather(1000, 1) == Charges()


def test_a_lone_rank_counts_what_it_would_send() -> None:
    rank = LoneRank(4)
    tensor = torch.ones(2, 3)
    assert torch.equal(rank.all_reduce(tensor), tensor)
    assert rank.all_gather(tensor).shape == (4, 2, 3)
    assert rank.charges == Charges(2, 24 * 1.5 + 24 * 3)
    assert (rank.traffic.num_collectives, rank.traffic.bytes_sent) == (2, 48)


def test_a_step_is_charged_its_slowest_part() -> None:
    found = project(ProjectionCase("lp", 2, "m"), [[recording([(3.0, 5.0), (2.0, 1.0), (1.0, 4.0)], rest_s=0.5)]])
    assert found.prompts == StepTotals(1, 5.0, 10, Charges(1, 500))
    assert found.decoding == StepTotals(2, 6.0, 20 + 30, Charges(2, 1000))
    assert found.tokens == 6 and found.tokens_per_step == 2
    seconds = 5 + 6 + 0.5 + 3 * 100e-6 + 1500 / 2e9
    assert found.tokens_per_s(NETWORK) == pytest.approx(6 / seconds)


def test_each_part_takes_the_median_of_its_own_times() -> None:
    texts = [[recording([(1.0, 9.0)], 1.0), recording([(7.0, 2.0)], 5.0), recording([(2.0, 3.0)], 3.0)]]
    found = project(ProjectionCase("lp", 2, "m"), texts)
    assert found.prompts.compute_s == 3.0  # the medians are 2 and 3; a single noisy reading does not matter
    assert found.rest_s == 3.0


def test_texts_add_up() -> None:
    texts = [[recording([(1.0,), (2.0,)], 0.25)], [recording([(4.0,)], 0.5)]]
    found = project(ProjectionCase("single", 1, "m"), texts)
    assert (found.prompts.steps, found.decoding.steps, found.tokens) == (2, 1, 6)
    assert (found.prompts.compute_s, found.decoding.compute_s, found.rest_s) == (5.0, 2.0, 0.75)


def test_the_fastest_of_each_degree_depends_on_the_latency() -> None:
    def projection(mode: str, ranks: int, method: str, compute_s: float, collectives: int) -> Projection:
        return Projection(
            ProjectionCase(mode, ranks, method),
            100,
            StepTotals(),
            StepTotals(10, compute_s, 0, Charges(collectives, 0)),
            0.0,
        )

    known = [
        projection("single", 1, "small", 10.0, 0),
        projection("tp", 2, "small", 5.0, 1000),
        projection("tp", 2, "large", 6.0, 10),
        projection("lp", 2, "small", 1.0, 1),
    ]
    near, far = Network(1, 10), Network(10_000, 10)
    assert {ranks: one.case.method for ranks, one in fastest(known, "tp", near).items()} == {1: "small", 2: "small"}
    assert {ranks: one.case.method for ranks, one in fastest(known, "tp", far).items()} == {1: "small", 2: "large"}
    assert fastest(known, "tp", near, ["large"]) == {2: known[2]}
    assert np.allclose(known[1].tokens_per_s(far), 100 / 15)
