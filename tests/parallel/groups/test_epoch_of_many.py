"""Many requests in every batch, and a rank is lost: the others go on, and agree on what each of them has cached."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Auto, Autoregressive, Engine, Lookahead, Stopping
from lp.request import Request
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.errors import RankLost
from parallel.groups.epoch import Epoch, RunningRequest, joined, resume
from parallel.mesh import Mesh, Mode
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.groups.test_epoch import GREEDY, SAMPLED, client, settings_of
from tests.parallel.ranks import run_ranks_to_end

NUM_TOKENS = 24
DECODES = [Lookahead(3, 3, 3), Auto(rows=12), Autoregressive()]


def requests_of(engine: Engine) -> list[Request]:
    stop = Stopping(NUM_TOKENS, ignore_eos=True)
    return [
        engine.request_builder.build(
            [(3 + 7 * i + number) % 41 + 2 for i in range(1 + 17 * number)],
            DECODES[number % 3],
            SAMPLED if number % 2 else GREEDY,
            stop,
            request_id=str(number),
        )
        for number in range(5)
    ]


def lose_one(mesh: Mesh, channel, folder: str, victim: int, num_steps: int, mode: Mode, in_step: bool):
    """All tokens from the ranks that are left, and what they think that each of them has cached; and what this has.

    in_step: whether the others notice it by their next step, or between two steps.
    """
    engine = Engine.from_pretrained(folder, device="cpu")
    assert isinstance(engine.runner, SingleDevice)
    alone, store, views = engine.runner, client(mesh), []
    requests, lost = requests_of(engine), threading.Event()
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    running = [RunningRequest(request, []) for request in requests]
    survivors = [rank for rank in range(mesh.num_ranks) if rank != victim]
    for epoch in (Epoch(1, list(range(mesh.num_ranks)), running=running), Epoch(2, survivors, running=running)):
        is_over = lost.is_set if epoch.number == 1 else lambda: False
        try:
            with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, is_over) as joint:
                runner = share_steps(alone, joint, mode)
                assert isinstance(runner, LookaheadParallel)
                for output in resume(engine, runner, joint, epoch, None):
                    tokens[output.request_id] = output.tokens
                prompts = {request.id: request.prompt for request in requests}
                own = {name: alone.num_cached(name, prompts[name] + more) for name, more in engine.generated().items()}
                views.append(({name: list(known.numbers) for name, known in runner._known.items()}, own))
                for number in range(10_000):
                    if engine.is_idle:
                        return tokens, views
                    if epoch.number == 1 and number == num_steps and (mesh.rank == victim or not in_step):
                        if mesh.rank == victim:
                            os.kill(os.getpid(), signal.SIGKILL)
                        raise RankLost("it was killed", (victim,))
                    for output in engine.step():
                        tokens[output.request_id] = tokens[output.request_id] + output.tokens
        except RankLost:
            lost.set()


@pytest.mark.parametrize(
    ("mode", "victim", "num_steps", "in_step"),
    [
        (Mode.auto, 1, 6, False),
        *(
            pytest.param(*rest, marks=pytest.mark.slow)
            for rest in ((Mode.dp, 0, 4, False), (Mode.dp, 2, 3, True), (Mode.lp, 2, 5, False), (Mode.auto, 0, 1, True))
        ),
    ],
)
def test_many_requests_outlive_a_rank(
    mode: Mode, victim: int, num_steps: int, in_step: bool, llama: Engine, checkpoint_folder: Callable[[str], Path]
) -> None:
    engine = Engine(llama.checkpoint)
    expected: dict[str, list[int]] = {}
    for request in requests_of(engine):
        engine.add_request(request)
        expected[request.id] = []
    while not engine.is_idle:
        for output in engine.step():
            expected[output.request_id] += output.tokens
    arguments = (str(checkpoint_folder("llama")), victim, num_steps, mode, in_step)
    outcomes = run_ranks_to_end(lose_one, 3, *arguments, doomed=(victim,), limit_s=240)
    survivors = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    for outcome in survivors:
        assert outcome.error is None and outcome.result[0] == expected, outcome
    views = [outcome.result[1][-1] for outcome in survivors]
    assert views[0][0] == views[1][0], "the ranks disagree"
    for place, (shared, own) in enumerate(views):
        assert own == {name: numbers[place] for name, numbers in shared.items()}
        assert any(own.values())
