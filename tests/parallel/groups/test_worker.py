"""The serving loop on real ranks: commands reach every rank at the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Engine, Lookahead, Output, Sampling, Stopping
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown
from parallel.groups.worker import run_engine
from parallel.mesh import Mesh
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_lookahead_parallel import parallel_engine


class Script:
    """An inbox that issues commands after given numbers of emitted steps, then shutdown when all is done."""

    def __init__(self, commands: list[tuple[int, Command]]):
        self.commands = commands
        self.emitted: list[Output] = []

    def has_waiting(self) -> bool:
        return bool(self.commands) and self.commands[0][0] <= len(self.emitted)

    def take(self, wait_s: float) -> list[Command]:
        due = []
        while self.has_waiting():
            due.append(self.commands.pop(0)[1])
        return due or ([Shutdown()] if wait_s else [])

    def emit(self, output: Output) -> None:
        self.emitted.append(output)


def serve(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Two requests side by side, one of which is cancelled, and a third that comes later."""
    engine = parallel_engine(channel, folder)
    make = engine.request_builder.build

    def submit(name: str, prompt: list[int]) -> Command:
        request = make(prompt, Lookahead(), Sampling(0.0, seed=1), Stopping(30, ignore_eos=True), request_id=name)
        return AddRequest(request)

    script = Script(
        [
            (0, submit("first", [5, 9, 5, 9])),
            (0, submit("cancelled", [6, 7, 8])),
            (4, Abort("cancelled")),
            (5, submit("late", [30, 31, 32, 33])),
        ]
    )
    record = Script([])
    inbox = script if mesh.rank == 0 else None
    run_engine(engine, channel, inbox, script.emit if inbox else record.emit)
    tokens: dict[str, list[int]] = {}
    endings: dict[str, str] = {}
    for output in (script if inbox else record).emitted:
        tokens.setdefault(output.request_id, []).extend(output.tokens)
        if output.finish_reason:
            endings[output.request_id] = output.finish_reason
    return tokens, endings


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_rank_goes_through_the_same_states(num_ranks: int, checkpoint_folder: Callable[[str], Path]) -> None:
    results = run_ranks(serve, num_ranks, str(checkpoint_folder("llama")))
    assert all(result == results[0] for result in results)
    tokens, endings = results[0]
    assert endings == {"first": "length", "cancelled": "cancelled", "late": "length"}
    assert len(tokens["first"]) == len(tokens["late"]) == 30
    assert 0 < len(tokens["cancelled"]) < 30


def test_the_end_of_the_last_request_is_told_before_more_is_awaited(llama: Engine) -> None:
    """A front end that has heard of no end would keep the request's place, and wait for it when it shuts down."""
    request = llama.request_builder.build([5, 9], Lookahead(), Sampling(0.0), Stopping(30, ignore_eos=True))
    emitted: list[Output] = []
    told: list[Output] = []
    rounds: list[list[Command]] = [[AddRequest(request)], [Abort(request.id)], [Shutdown()]]

    class Inbox:
        """Submits a request, cancels it after a step, and shuts down."""

        def has_waiting(self) -> bool:
            return True

        def take(self, wait_s: float) -> list[Command]:
            assert told == emitted
            return rounds.pop(0)

    def flush() -> None:
        told[:] = emitted

    run_engine(llama, Channel(LocalExchange()), Inbox(), emitted.append, flush)
    assert told[-1].finish_reason == "cancelled"
