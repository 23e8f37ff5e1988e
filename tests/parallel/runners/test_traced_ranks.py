"""Traces on real ranks: which of them computed which node, and how many rows the busiest one had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, StepTrace
from lp.model.checkpoint import ModelSettings, load
from lp.runner.runner import StepInput
from lp.runner.sequence_state import SequenceState
from lp.runner.single_device import SingleDevice
from lp.scheduling.request_state import RequestState
from lp.tree import TokenTree, chain
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.shares import Shares, shared_by
from tests.parallel.ranks import run_ranks

PROMPT = [5, 9, 5, 11, 9, 5, 30, 12, 9, 5, 11]
METHODS = [Auto(), Auto(rows=24), Autoregressive(), Lookahead(9, 4, 6), PromptLookup(3, 5), Jacobi(7)]


def trace_all(mesh: Mesh, channel: Channel, folder: str, ranks_per_replica: int) -> list[tuple[list[Any], list[int]]]:
    """For each method, the traces of this rank's engine, and the rows that the rank has computed in each step."""
    checkpoint = load(ModelSettings(path=folder, device="cpu"))
    runner = LookaheadParallel(SingleDevice(checkpoint.model), channel, ranks_per_replica)
    engine = Engine(checkpoint, runner, fingerprints=True)
    computed: list[int] = []
    launch, attach = runner.launch, SequenceState.attach

    def counted_launch(steps: list[StepInput]):
        computed.append(0)
        return launch(steps)

    def counted_attach(state: SequenceState, step: StepInput) -> TokenTree:
        tree = attach(state, step)
        computed[-1] += len(tree)
        return tree

    runner.launch, SequenceState.attach = counted_launch, counted_attach  # pyright: ignore[reportAttributeAccessIssue]
    found = []
    for decode in METHODS:
        computed.clear()
        completion = engine.generate(PROMPT, max_new_tokens=30, decode=decode, temperature=0.0, seed=3, trace=True)
        assert [token for trace in completion.trace for token in trace.emitted] == completion.token_ids
        found.append(([trace.to_dict() for trace in completion.trace], [*computed]))
    return found


@pytest.mark.parametrize(
    ("num_ranks", "ranks_per_replica"),
    [(1, 1), (2, 1), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((3, 1), (2, 2), (4, 2)))],
)
def test_ranks_and_rows_are_those_that_were_computed(
    num_ranks: int, ranks_per_replica: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    """Neighbours of one replica compute the same: a node has the number of the first of them."""
    by_rank = run_ranks(trace_all, num_ranks, str(checkpoint_folder("llama")), ranks_per_replica, timeout_s=60)
    replicas = {str(rank) for rank in range(0, num_ranks, ranks_per_replica)}
    shared = 0
    for number, decode in enumerate(METHODS):
        traces = [StepTrace.from_dict(trace) for trace in by_rank[0][number][0]]
        for others in by_rank[1:]:  # all ranks tell the same but for times
            for trace, other in zip(traces, others[number][0], strict=True):
                assert trace._replace(step_ms=0.0) == StepTrace.from_dict(other)._replace(step_ms=0.0)
        steps = zip(*(rank[number][1] for rank in by_rank), strict=True)
        for trace, rows in zip(traces, steps, strict=True):
            assert trace.rows == max(rows), (decode, trace.step, rows)
            assert set(trace.ranks) <= replicas and len(trace.ranks) == len(trace.tokens)
            shared += len(set(trace.ranks)) > 1
    assert (shared > 20) == (len(replicas) > 1)


def test_only_traced_sequences_are_told(llama: Engine) -> None:
    request = llama.request_builder.build(PROMPT, Lookahead(3, 3, 3))
    traced = llama.request_builder.build(PROMPT, Lookahead(3, 3, 3), trace=True)
    steps = [
        StepInput.of(RequestState(one, llama.checkpoint, llama.history).sequence, chain([1, 2, 3, 4]))
        for one in (request, traced)
    ]
    all_shares = [Shares({0: range(4)}), Shares({0: [0, 1], 1: [0, 1, 2, 3]})]
    numbers = [[10, 10], [10, 3]]
    told = shared_by(steps, numbers, all_shares, 1)
    assert told and told.ranks == {traced.id: "0011"}
    assert told.most_rows == 4 + 7  # rank 1 lacks seven tokens of the second one
    assert shared_by(steps[:1], numbers[:1], all_shares[:1], 1) is None
