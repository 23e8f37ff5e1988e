"""A device that computes while the host works yields the trees and texts of one that does not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lp import Auto, Engine, Sampling, Stopping
from lp.platform.library import library, python_alone
from lp.request import Request
from lp.runner.single_device import Pending, SingleDevice
from lp.step_cost import StepTimes
from tests.lp.drafting.reference.drafter import ReferenceDrafters
from tests.slow import slow_except

GREEDY, SAMPLED = Sampling(temperature=0.0, seed=0), Sampling(temperature=0.8, seed=5)
TIMES = StepTimes((1, 4, 8, 16, 32, 64, 128), (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064))

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


class Device(SingleDevice):
    """A device that seems to work by itself. seen: tokens and parents of all rows of each step, and the length of what
    was cached before them.
    """

    def __init__(self, engine: Engine, is_asynchronous: bool):
        super().__init__(engine.checkpoint.model)
        self._is_asynchronous = is_asynchronous
        self.seen: list[Any] = []

    @property
    def is_asynchronous(self) -> bool:
        return self._is_asynchronous

    def _compute(self, given: list[Any], asked: list[Any]) -> Pending:
        for tree, cache, *_ in given:
            self.seen.append((tree.tokens.tolist(), tree.parents.tolist(), cache.length))
        return super()._compute(given, asked)


def on(llama: Engine, is_asynchronous: bool = True, times: StepTimes | None = None) -> tuple[Engine, Device]:
    device = Device(llama, is_asynchronous)
    return Engine(llama.checkpoint, device, step_times=times), device


def session(engine: Engine, device: Device, seed: int, temperature: float) -> list[Any]:
    """All that some requests with settings made at random yield, one after the other, and the trees of their steps."""
    rng, told = random.Random(seed), list[Any]()
    for number in range(3):
        prompt = [rng.randrange(5, 60) for _ in range(rng.choice([1, 4, 30]))] * rng.choice([1, 3])
        decode = Auto(rows=rng.choice([0, 0, 1, 12]), max_window=rng.choice([0, 5]), candidates=rng.choice([2, 8]))
        ends = [rng.randrange(60)] if rng.random() < 0.5 else []
        stopping = Stopping(rng.choice([1, 7, 50]), stop_token_ids=ends, ignore_eos=True)
        how = Sampling(temperature=temperature, seed=number, logprobs=rng.choice([None, 2]))
        found = engine.generate(prompt, decode=decode, sampling=how, stopping=stopping)
        stats = found.stats
        told.append((found.token_ids, found.text, found.finish_reason, found.logprobs, stats.accepted_lengths))
        told.append((stats.proposed, stats.accepted, stats.rows))
    return [*told, *device.seen]


@pytest.mark.parametrize("temperature", slow_except([0.0, 0.8], 0.8))
@pytest.mark.parametrize("times", [None, TIMES], ids=["unknown times", "a CPU's times"])
def test_trees_and_texts_are_those_of_a_device_that_is_waited_for(
    llama: Engine, temperature: float, times: StepTimes | None
) -> None:
    for seed in range(3):
        found = session(*on(llama, times=times), seed, temperature)
        assert found == session(*on(llama, is_asynchronous=False, times=times), seed, temperature)


def test_trees_and_texts_are_those_of_python(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's walks and visibility, and the reference of the drafts."""
    found = [session(*on(llama), seed, 0.0) for seed in range(2)]
    monkeypatch.setattr("lp.drafting.history.usual_drafters", ReferenceDrafters)
    with python_alone():
        assert found == [session(*on(llama), seed, 0.0) for seed in range(2)]


def request(engine: Engine, name: str, prompt: list[int], how: Sampling = GREEDY) -> Request:
    stopping = Stopping(40, ignore_eos=True)
    return engine.request_builder.build(prompt, Auto(rows=8), how, stopping, request_id=name)


def run(engine: Engine, requests: dict[int, Request], cancelled: dict[int, str] | None = None) -> dict[str, list[int]]:
    """The tokens of requests that come after so many steps; some are cancelled."""
    tokens: dict[str, list[int]] = {}
    for number in range(200):
        if number in requests:
            engine.add_request(requests[number])
        if number in (cancelled or {}):
            assert engine.abort((cancelled or {})[number]) is not None
        for output in [] if engine.is_idle else engine.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
    assert engine.is_idle
    return tokens


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_request_that_joins_another_changes_nothing(llama: Engine, how: Sampling) -> None:
    (engine, _), (usual, _) = on(llama), on(llama, is_asynchronous=False)
    made = [{0: request(one, "a", [5, 9] * 4, how), 6: request(one, "b", [7, 3, 7, 3], how)} for one in (engine, usual)]
    assert run(engine, made[0]) == run(usual, made[1])


def test_a_request_that_is_aborted_leaves_the_next_one_alone(llama: Engine) -> None:
    engine, _ = on(llama)
    found = run(engine, {0: request(engine, "a", [5, 9] * 4), 9: request(engine, "b", [7, 3, 7, 3])}, {8: "a"})
    expected = llama.generate([7, 3, 7, 3], decode=Auto(rows=8), sampling=GREEDY, max_new_tokens=40)
    assert found["b"] == expected.token_ids
