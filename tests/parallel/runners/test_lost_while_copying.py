"""A rank that is lost in the middle of a copy is named by all others, and the requests go on without it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Autoregressive, Engine, Stopping
from lp.request import Sequence
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.errors import RankLost
from parallel.groups.epoch import Epoch, RunningRequest, joined, resume
from parallel.mesh import Mesh, Mode
from parallel.runners import copying
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.groups.test_epoch import client, settings_of
from tests.parallel.ranks import run_ranks_to_end
from tests.parallel.runners.test_copying_on_ranks import GREEDY, MESSAGE_BYTES, PROMPT, InTurn, decode, runner_of


def die_in_a_copy(
    mesh: Mesh, channel: Channel, folder: str, victim: int, num_messages: int
) -> tuple[tuple[int, ...], float]:
    """The ranks that are named, and the seconds until then, when one ends between two messages of a copy."""
    runner = runner_of(folder, channel)
    sequence = Sequence("turns", list(PROMPT), len(PROMPT), GREEDY)
    runner.open(sequence)
    decode(runner, sequence, 1)
    assert runner.copying is not None
    if mesh.rank == victim:
        _end_after(runner, num_messages)
    begin = time.monotonic()
    with pytest.raises(RankLost) as caught:
        decode(runner, sequence, 12)
    length = runner.inner.num_cached(sequence.id, sequence.tokens)
    assert length <= len(sequence.tokens) - 1, "what is cached is known, as before"
    return caught.value.ranks, time.monotonic() - begin


def _end_after(runner: LookaheadParallel, num_messages: int) -> None:
    """Has this process killed after so many messages that it sends or receives."""
    messages, left = runner.copying and runner.copying.messages, [num_messages]
    assert messages is not None

    def counted(work):
        def call(*arguments):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return work(*arguments)

        return call

    messages.send, messages.receive = counted(messages.send), counted(messages.receive)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("exchange", "victim", "num_messages"),
    [
        ("shm", 1, 1),
        ("gloo", 0, 3),
        pytest.param("shm", 0, 2, marks=pytest.mark.slow),
        pytest.param("gloo", 2, 0, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_in_the_middle_of_a_copy_is_named_by_all_others(
    exchange: str, victim: int, num_messages: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    arguments = (str(checkpoint_folder("llama")), victim, num_messages)
    outcomes = run_ranks_to_end(die_in_a_copy, 3, *arguments, exchange=exchange, doomed=(victim,))
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.error is None, outcome.error + outcome.stderr
            assert outcome.result[0] == (victim,) and outcome.result[1] < 8.0


def outlive_a_copy(mesh: Mesh, channel: Channel, folder: str, victim: int) -> list[list[int]] | None:
    """The tokens of some requests whose ranks take turns, one of which is killed in the middle of a copy."""
    copying.MESSAGE_BYTES = MESSAGE_BYTES
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    assert isinstance(engine.runner, SingleDevice)
    alone, store, is_lost = engine.runner, client(mesh), [False]
    stopping = Stopping(16, ignore_eos=True)
    requests = [
        engine.request_builder.build(PROMPT[number:], Autoregressive(), GREEDY, stopping, request_id=str(number))
        for number in range(2)
    ]
    running = [RunningRequest(request, []) for request in requests]
    tokens: dict[str, list[int]] = {}
    survivors = [rank for rank in range(mesh.num_ranks) if rank != victim]
    for epoch in (Epoch(1, list(range(mesh.num_ranks)), running=running), Epoch(2, survivors, running=running)):
        try:
            with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as joint:
                runner = share_steps(alone, joint, Mode.auto)
                assert isinstance(runner, LookaheadParallel) and runner.copying is not None
                runner.sharing = InTurn()
                for output in resume(engine, runner, joint, epoch, None):
                    tokens[output.request_id] = output.tokens
                if epoch.number == 2:
                    held = [max(runner._known[request.id].numbers) for request in requests]
                    assert min(held) > 0 and is_lost[0], "what the first rank had is not lost"
                elif mesh.rank == victim:
                    _end_after(runner, 9)
                while not engine.is_idle:
                    for output in engine.step():
                        tokens[output.request_id] = tokens[output.request_id] + output.tokens
                assert runner.copying.num_tokens > 0
                return [tokens[request.id] for request in requests]
        except RankLost:
            assert epoch.number == 1
            is_lost[0] = True
    return None


def test_requests_outlive_a_rank_that_is_killed_in_the_middle_of_a_copy(
    checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    stopping = Stopping(16, ignore_eos=True)
    expected = [
        llama.generate(PROMPT[number:], decode=Autoregressive(), sampling=GREEDY, stopping=stopping).token_ids
        for number in range(2)
    ]
    outcomes = run_ranks_to_end(outlive_a_copy, 3, str(checkpoint_folder("llama")), 1, doomed=(1,), limit_s=240)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error + outcome.stderr
        assert outcome.result == expected
