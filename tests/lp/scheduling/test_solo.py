"""A sequence that has the engine for itself goes on with few calls, and yields what it yields otherwise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lp import Auto, Engine, Sampling, Stopping
from lp.host.library import library, python_alone
from lp.request import Completion, Request
from lp.runner import StepInput
from lp.single_device import Pending, SingleDevice
from lp.step_cost import StepTimes
from tests.slow import slow_except

GREEDY, SAMPLED = Sampling(temperature=0.0, seed=0), Sampling(temperature=0.8, seed=5)
TIMES = StepTimes((1, 4, 8, 16, 32, 64, 128), (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064))

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


class Device(SingleDevice):
    """A device that seems to work by itself. seen: tokens and parents of all rows of each step, and the length of what
    was cached before them. num_gone_on: steps that were started by `go_on`.
    """

    is_asynchronous = True  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, engine: Engine, goes_on: bool = True):
        super().__init__(engine.checkpoint.model)
        self._starts_as_usual = goes_on
        self.seen: list[Any] = []
        self.num_gone_on = 0
        self.fails_at = -1

    def go_on(self, step: StepInput, rows: list[int]) -> None:
        self.num_gone_on += 1
        if self.num_gone_on == self.fails_at:
            raise MemoryError("no room")
        super().go_on(step, rows)

    def _compute(self, given: list[Any], asked: list[Any], has_room: bool = False) -> Pending:
        for tree, cache, _ in given:
            self.seen.append((tree.tokens.tolist(), tree.parents.tolist(), cache.length))
        return super()._compute(given, asked, has_room)


def on(llama: Engine, goes_on: bool = True, times: StepTimes | None = None) -> tuple[Engine, Device]:
    device = Device(llama, goes_on)
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
def test_trees_and_texts_are_those_of_steps_that_are_planned_by_themselves(
    llama: Engine, temperature: float, times: StepTimes | None
) -> None:
    num_gone_on = 0
    for seed in range(3):
        engine, device = on(llama, times=times)
        found = session(engine, device, seed, temperature)
        num_gone_on += device.num_gone_on
        assert found == session(*on(llama, goes_on=False, times=times), seed, temperature)
    assert num_gone_on > 20


def test_trees_and_texts_are_those_of_python(llama: Engine) -> None:
    num_gone_on = 0
    for seed in range(2):
        engine, device = on(llama)
        found = session(engine, device, seed, 0.0)
        num_gone_on += device.num_gone_on
        with python_alone():
            other, plain = on(llama)
            assert found == session(other, plain, seed, 0.0)
        assert not plain.num_gone_on
    assert num_gone_on


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
        for progress in [] if engine.is_idle else engine.step():
            tokens.setdefault(progress.request_id, []).extend(progress.tokens)
    assert engine.is_idle
    return tokens


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_request_that_joins_one_that_is_alone_changes_nothing(llama: Engine, how: Sampling) -> None:
    (engine, device), (usual, _) = on(llama), on(llama, goes_on=False)
    made = [{0: request(one, "a", [5, 9] * 4, how), 6: request(one, "b", [7, 3, 7, 3], how)} for one in (engine, usual)]
    assert run(engine, made[0]) == run(usual, made[1])
    assert device.num_gone_on >= 4


def test_a_request_that_is_cancelled_leaves_the_next_one_alone(llama: Engine) -> None:
    engine, device = on(llama)
    found = run(engine, {0: request(engine, "a", [5, 9] * 4), 9: request(engine, "b", [7, 3, 7, 3])}, {8: "a"})
    expected = llama.generate([7, 3, 7, 3], decode=Auto(rows=8), sampling=GREEDY, max_new_tokens=40)
    assert found["b"] == expected.token_ids
    assert device.num_gone_on > 5


def test_what_a_step_has_yielded_is_told_before_the_next_start_fails(llama: Engine) -> None:
    engine, device = on(llama)
    device.fails_at = 3
    completion, prompt = Completion(), [5, 9] * 4
    stream = engine.stream(prompt, decode=Auto(rows=8), sampling=GREEDY, max_new_tokens=40)
    with pytest.raises(MemoryError, match="no room"):
        for progress in stream:
            completion.extend(progress)
    expected = llama.generate(prompt, decode=Auto(rows=8), sampling=GREEDY, max_new_tokens=40).token_ids
    assert completion.token_ids and completion.token_ids == expected[: len(completion.token_ids)]
    assert engine.is_idle
    again = engine.generate(prompt, decode=Auto(rows=8), sampling=GREEDY, max_new_tokens=40)
    assert again.token_ids == expected
