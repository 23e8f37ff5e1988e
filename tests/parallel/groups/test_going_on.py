"""Requests that run when an epoch ends go on in the next one from what their ranks have computed of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lp import Autoregressive, Engine, Lookahead, Stopping
from lp.request import Request
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.groups.epoch import Epoch, RunningRequest, joined, num_cached, resume
from parallel.mesh import Mesh, Mode
from tests.parallel.groups.test_epoch import GREEDY, client, settings_of
from tests.parallel.ranks import run_ranks

NUM_TOKENS, LENGTH = 40, 150
# Tokens of a sequence that a rank lacks where it has computed a part of each tree only.
LAG = 8
Tokens = dict[str, list[int]]


def requests_of(engine: Engine) -> list[Request]:
    stop, decodes = Stopping(NUM_TOKENS, ignore_eos=True), [Lookahead(3, 3, 3), Autoregressive()]
    return [
        engine.request_builder.build(
            [(3 + 7 * i + number) % 41 + 2 for i in range(LENGTH)], decode, GREEDY, stop, request_id=str(number)
        )
        for number, decode in enumerate(decodes)
    ]


def step(engine: Engine, tokens: Tokens) -> None:
    for output in engine.step():
        tokens[output.request_id] = tokens[output.request_id] + output.tokens


def divide(mesh: Mesh, channel: Channel, folder: str, mode: Mode) -> tuple[dict[str, int], list[int], Tokens]:
    """Two ranks share steps, then each serves one of two requests, then they share steps again.

    Returns what this rank had cached when the ranks divided, how many tokens its scheduler had to feed in the two later
    epochs, and all tokens of the requests that it served last.
    """
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    assert isinstance(engine.runner, SingleDevice)
    alone, store, requests, cached = engine.runner, client(mesh), requests_of(engine), {"0": 0, "1": 0}
    tokens: Tokens = {"0": [], "1": []}
    missing: list[int] = []
    for number, is_divided in enumerate([False, True, False], start=1):
        own = requests[mesh.rank : mesh.rank + 1] if is_divided else requests
        epoch = Epoch(number, [0, 1], group_size=1 if is_divided else 2)
        epoch.running = [RunningRequest(request, tokens[request.id]) for request in own]
        with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as joint:
            for output in resume(engine, share_steps(alone, joint, mode), joint, epoch, None):
                tokens[output.request_id] = output.tokens
            missing += [one.num_uncomputed for one in engine.scheduler]
            while min(len(tokens[request.id]) for request in own) < 10 * number:
                step(engine, tokens)
            cached = num_cached(engine) if number == 1 else cached
    return cached, missing[2:], tokens


@pytest.mark.parametrize("mode", [Mode.lp, Mode.auto])
def test_what_is_cached_is_not_fed_again(checkpoint_folder: Callable[[str], Path], mode: Mode) -> None:
    folder = str(checkpoint_folder("llama"))
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    requests = requests_of(engine)
    expected: Tokens = {}
    for request in requests:
        expected[request.id] = []
        engine.add_request(request)
        while not engine.is_idle:
            step(engine, expected)
    of_ranks = run_ranks(divide, 2, folder, mode)
    for rank, (cached, missing, tokens) in enumerate(of_ranks):
        assert cached.keys() == {"0", "1"}
        assert missing[0] <= max(LENGTH + 10 - cached[str(rank)], 0) + LAG
        assert max(missing[1:]) <= LAG, "some rank has it"
        assert min(map(len, tokens.values())) >= 30
        assert all(expected[name][: len(found)] == found for name, found in tokens.items())
    for name in ("0", "1"):
        assert max(cached[name] for cached, _, _ in of_ranks) >= LENGTH


def change_size(mesh: Mesh, channel: Channel, folder: str) -> tuple[Tokens, list[list[int]]]:
    """Four ranks in groups of four, two, one and four again. The groups of an epoch share the requests out evenly.

    Returns the tokens of each request that this rank has served last, and what this rank's scheduler had to feed at the
    beginning of each epoch.
    """
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    assert isinstance(engine.runner, SingleDevice)
    alone, store, requests = engine.runner, client(mesh), [*requests_of(engine), *requests_of(engine)]
    requests = [replace(request, id=str(number)) for number, request in enumerate(requests)]
    tokens: Tokens = {request.id: [] for request in requests}
    missing: list[list[int]] = []
    for number, size in enumerate([4, 2, 1, 4], start=1):
        epoch = Epoch(number, [0, 1, 2, 3], group_size=size)
        group = epoch.leaders.index(epoch.group_of(mesh.rank)[0])
        own = requests[group :: len(epoch.leaders)]
        epoch.running = [RunningRequest(request, tokens[request.id]) for request in own]
        with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as joint:
            assert joint.num_ranks == size
            for output in resume(engine, share_steps(alone, joint, Mode.auto), joint, epoch, None):
                tokens[output.request_id] = output.tokens
            missing.append([one.num_uncomputed for one in engine.scheduler])
            while min(len(tokens[request.id]) for request in own) < 8 * number:
                step(engine, tokens)
    return tokens, missing


def test_groups_of_four_two_and_one_yield_the_same_tokens(checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    expected: Tokens = {}
    for request in requests_of(engine):
        expected[request.id] = []
        engine.add_request(request)
        while not engine.is_idle:
            step(engine, expected)
    for tokens, missing in run_ranks(change_size, 4, folder):
        assert [len(of_epoch) for of_epoch in missing] == [4, 2, 1, 4]
        assert max(missing[1]) <= LAG and max(missing[3]) <= LAG, "some rank of the group has it"
        for name, found in tokens.items():
            assert len(found) >= 32 and expected[str(int(name) % 2)][: len(found)] == found
