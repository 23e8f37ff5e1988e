"""Who verifies and who drafts on real ranks: chosen for each step, the same on all of them, and told in traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lp import Auto, Autoregressive, DraftModel, Engine, Lookahead, SecondModel, StepTrace
from lp.model.quantization.quantize import Weights
from lp.request import Completion, DecodingMethod
from lp.runner.single_device import SingleDevice
from lp.step_cost import StepTimes
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.lp.test_lossless import make_prompt
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_drafts_ahead import GREEDY, SAMPLED, STOPPING, make_engine

COPY, PROMPT = SecondModel(weights=Weights.int8), make_prompt(60)
LOOKAHEAD, AHEAD = Lookahead(9, 4, 6), DraftModel()
# With these, sharing a large step is many times as fast as leaving it to one rank, and a small one as fast.
TIMES = StepTimes((1, 8, 16, 64), (0.010, 0.0101, 0.0102, 0.011), 2, StepTimes((1, 16, 64), (0.010, 0.0104, 0.2)))
# Tokens, traces and statistics of a request.
Told = tuple[list[int], list[dict[str, Any]], dict[str, Any]]


def told_of(done: Completion) -> Told:
    traces = [{**trace.to_dict(), "step_ms": 0, "expected_ms": 0} for trace in done.trace]
    return done.token_ids, traces, dict(done.stats.drafted_ahead)


def one_by_one(mesh: Mesh, channel: Channel, folder: str) -> list[Told]:
    engine = make_engine(channel, folder, COPY)
    return [
        told_of(engine.generate(PROMPT, decode=decode, sampling=one, stopping=STOPPING, trace=True))
        for decode, one in ((AHEAD, GREEDY), (Auto(), SAMPLED), (LOOKAHEAD, GREEDY), (Autoregressive(), GREEDY))
    ]


def together(mesh: Mesh, channel: Channel, folder: str, methods: Sequence[DecodingMethod]) -> list[Told]:
    """Requests that share steps, with step times."""
    made = make_engine(None, folder, COPY)
    assert isinstance(made.runner, SingleDevice)
    runner = share_steps(made.runner, channel, has_draft=True)
    engine = Engine(made.checkpoint, runner, fingerprints=True, step_times=TIMES)
    done = [Completion() for _ in methods]
    for number, decode in enumerate(methods):
        engine.add_request(
            engine.request_builder.build(
                make_prompt(20, number), decode, replace(GREEDY, seed=number),
                replace(STOPPING, max_new_tokens=90), f"{number}", trace=True,
            )
        )  # fmt: skip
    while not engine.is_idle:
        for output in engine.step():
            done[int(output.request_id)].extend(output)
    return [told_of(one) for one in done]


def check_roles(traces: Sequence[StepTrace], counted: dict[str, Any]) -> None:
    """Asserts that traces of one rank that verifies and others that draft are whole, and that drafts come to use."""
    ahead = [trace for trace in traces if trace.drafting]
    for trace in ahead:
        assert (
            set(trace.ranks).isdisjoint(trace.drafting) and len(set(trace.ranks)) == 1 and trace.drafted_for is not None
        )
        assert {str(rank) for rank, _, _ in trace.drafted_for} <= set(trace.drafting)
        assert all(0 <= row < len(trace.tokens) for _, row, _ in trace.drafted_for)
        if trace.came_true is not None:
            _, row, token = trace.drafted_for[trace.came_true]
            assert (row, token) == ([0, *trace.accepted][-1], trace.emitted[-1])
    came_true = sum(trace.came_true is not None for trace in ahead)
    assert 0 < came_true <= counted["expected"] <= counted["steps"] == len(ahead)
    following = [later for one, later in pairwise(traces) if one.came_true is not None]
    assert sum("f" in trace.sources for trace in following) > len(following) / 2


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_traces_say_who_verified_and_who_drafted_for_what(
    num_ranks: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    by_rank = run_ranks(one_by_one, num_ranks, str(checkpoint_folder("llama")), timeout_s=60)
    assert by_rank == by_rank[:1] * num_ranks, "all ranks tell the same"
    (ahead, mixed, shared, plain) = by_rank[0]
    for _, traces, counted in (ahead, mixed):
        check_roles([StepTrace.from_dict(trace) for trace in traces], counted)
    assert ahead[0] == shared[0] == plain[0]
    for _, traces, counted in (shared, plain):  # nothing of the draft model is in them
        assert not counted and not any(trace["drafting"] or trace["drafted_for"] for trace in traces)
    assert sum(len(set(trace["ranks"])) > 1 for trace in shared[1]) > len(shared[1]) / 2, "trees are shared"


def test_all_verify_where_step_times_say_so(checkpoint_folder: Callable[[str], Path]) -> None:
    folder, methods = str(checkpoint_folder("llama")), [AHEAD, Auto(), LOOKAHEAD, LOOKAHEAD, AHEAD]
    by_rank = run_ranks(together, 2, folder, methods, timeout_s=60)
    assert by_rank[0] == by_rank[1]
    alone = make_engine(None, folder, COPY)
    for number, (tokens, traces, _) in enumerate(by_rank[0]):
        plain = alone.generate(
            make_prompt(20, number), decode=Autoregressive(), sampling=replace(GREEDY, seed=number),
            stopping=replace(STOPPING, max_new_tokens=90),
        )  # fmt: skip
        assert tokens == plain.token_ids
        is_ahead = [bool(trace["drafting"]) for trace in traces]
        assert not any(is_ahead[: len(is_ahead) // 2]), "all verify while five requests run"
        assert is_ahead[-1] is (methods[number] is not LOOKAHEAD), "one verifies when those with its drafts are left"
