"""Ranks are killed that verify or draft ahead, before a step, before its exchange, or after it; texts stay the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lp import Auto, Autoregressive, DraftModel, Engine, SecondModel, Stopping
from lp.model.quantization.quantize import Weights
from lp.request import DecodingMethod, Request
from lp.runner.single_device import SingleDevice
from lp.trace import DIGITS, StepTrace
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.errors import RankLost
from parallel.groups.epoch import Epoch, RunningRequest, joined, resume
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.groups.test_epoch import GREEDY, PROMPTS, SAMPLED, client, settings_of
from tests.parallel.ranks import run_ranks_to_end
from tests.parallel.runners.test_drafts_ahead import make_engine

COPY, NUM_TOKENS, LEAST_STEPS = SecondModel(weights=Weights.int8), 100, 4
VERIFIER, DRAFTER = "verifier", "drafter"
BEFORE_STEP, BEFORE_EXCHANGE, AFTER_EXCHANGE = "before the step", "before the exchange", "after the exchange"
Tokens = dict[str, list[int]]


class Kill(NamedTuple):
    """The role of the rank that is killed, and when."""

    role: str
    phase: str


def requests_of(engine: Engine, methods: list[DecodingMethod]) -> list[Request]:
    stop = Stopping(NUM_TOKENS, ignore_eos=True)
    return [
        engine.request_builder.build(prompt, decode, sampling, stop, request_id=str(number), trace=True)
        for number, (prompt, decode, sampling) in enumerate(zip(PROMPTS, methods, (GREEDY, SAMPLED), strict=True))
    ]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(runner: LookaheadParallel, kill: Kill) -> None:
    """Has this process die in the step that comes next."""
    exchange, channel = runner.channel.gather_rows, runner.channel

    def before_exchange(drafts: object) -> None:  # the forward of the verifier, or the drafts of this rank, are there
        assert (runner.ahead_place is not None) is (kill.role == DRAFTER)
        die()

    def after_exchange(*arguments: object) -> None:
        exchange(*arguments)  # type: ignore[arg-type]
        die()

    if kill.phase == BEFORE_STEP:
        die()
    elif kill.phase == BEFORE_EXCHANGE:
        runner.send_ahead = before_exchange  # pyright: ignore[reportAttributeAccessIssue]
    else:
        channel.gather_rows = after_exchange  # pyright: ignore[reportAttributeAccessIssue]


def victim_of(trace: StepTrace, kill: Kill) -> int:
    """The place of the rank with this role in a step."""
    return DIGITS.index(trace.ranks[0] if kill.role == VERIFIER else trace.drafting[0])


def lose(mesh: Mesh, channel: Channel, folder: str, kills: list[Kill]) -> Tokens:
    """The tokens of all requests, from the rank that is left in the end. Each epoch ends with a kill."""
    engine = make_engine(None, folder, COPY)
    assert isinstance(engine.runner, SingleDevice)
    alone, store, members = engine.runner, client(mesh), list(range(mesh.num_ranks))
    requests = requests_of(engine, [DraftModel(), Auto()])
    tokens: Tokens = {request.id: [] for request in requests}
    for number, kill in enumerate([*kills, None], start=1):
        lost, victim, num_steps = threading.Event(), None, 0
        epoch = Epoch(number, members, running=[RunningRequest(one, tokens[one.id]) for one in requests])
        try:
            with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lost.is_set) as joint:
                runner = share_steps(alone, joint, has_draft=True)
                for output in resume(engine, runner, joint, epoch, None):
                    tokens[output.request_id] = output.tokens
                while not engine.is_idle:
                    traces = list[StepTrace]()
                    for output in engine.step():
                        tokens[output.request_id] = tokens[output.request_id] + output.tokens
                        traces += [output.trace] if output.trace else []
                    num_steps += 1
                    if kill and victim is None and num_steps >= LEAST_STEPS and traces and traces[0].drafting:
                        victim = members[victim_of(traces[0], kill)]
                        if victim == mesh.rank:
                            assert isinstance(runner, LookaheadParallel)
                            arm(runner, kill)
            assert kill is None, f"all texts ended before a rank was killed: {kill}"
        except RankLost as error:
            assert victim is not None and [members[place] for place in error.ranks] == [victim], str(error)
            lost.set()
            members = [rank for rank in members if rank != victim]
    return tokens


@pytest.mark.parametrize(
    "kills",
    [
        [Kill(VERIFIER, BEFORE_EXCHANGE), Kill(DRAFTER, AFTER_EXCHANGE)],
        *(
            pytest.param(kills, marks=pytest.mark.slow)
            for kills in (
                [Kill(DRAFTER, BEFORE_EXCHANGE), Kill(VERIFIER, AFTER_EXCHANGE), Kill(DRAFTER, BEFORE_STEP)],
                [Kill(VERIFIER, BEFORE_STEP), Kill(DRAFTER, BEFORE_EXCHANGE), Kill(VERIFIER, AFTER_EXCHANGE)],
            )
        ),
    ],
)
def test_the_tokens_are_those_of_plain_decoding(kills: list[Kill], checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    outcomes = run_ranks_to_end(lose, 1 + len(kills), folder, kills, timeout_s=60)
    assert sorted(outcome.exit_code or 0 for outcome in outcomes) == [-signal.SIGKILL] * len(kills) + [0], outcomes
    engine = make_engine(None, folder, COPY)
    expected: Tokens = {}
    for request in requests_of(engine, [Autoregressive(), Autoregressive()]):
        engine.add_request(request)
        expected[request.id] = []
    while not engine.is_idle:
        for output in engine.step():
            expected[output.request_id] += output.tokens
    assert [outcome.result for outcome in outcomes if outcome.exit_code == 0] == [expected]
