"""What a sequence and a cached token cost is measured, on a machine that is made up and on a tiny model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lp import Engine
from lp.request import Sequence
from lp.runner.runner import Runner, StepInput
from lp.runner.step_times import sequences
from lp.runner.step_times.sequences import measure_sequences
from lp.tree import Answers

# Seconds of a step, and of each of its rows, sequences and cached tokens.
STEP, ROW, SEQUENCE, CACHED = 0.010, 0.0004, 0.0003, 1e-6


class Machine(Runner):
    """A Runner and its clock; rows are dealt out evenly. held_up: every so many batches take a second longer."""

    depth = 1
    is_asynchronous = False
    cache_bytes = 0

    def __init__(self, num_parts: int = 1, held_up: int = 0, scale: float = 1.0):
        self.num_parts, self.held_up, self.scale = num_parts, held_up, scale
        self.now = 0.0
        self.open_ids: set[str] = set()
        self.computed: dict[str, int] = {}
        self.num_batches = 0
        self.longest = 0

    def open(self, sequence: Sequence) -> None:
        self.open_ids.add(sequence.id)
        self.computed[sequence.id] = 0

    def start(self, steps: list[StepInput]) -> None:
        assert len({step.sequence.id for step in steps}) == len(steps) and len(steps[0].tree)
        self.num_batches += 1
        rows = cached = 0
        for step in steps:
            assert step.sequence.id in self.open_ids and step.tree.tokens[0] == step.sequence.tokens[-1]
            rows += len(step.tree) + step.num_computed - self.computed[step.sequence.id]
            self.computed[step.sequence.id] = step.num_computed
            cached += step.num_computed
            self.longest = max(self.longest, len(step.sequence.tokens))
        parts = min(self.num_parts, len(steps))
        seconds = STEP + (ROW * rows + SEQUENCE * len(steps) + CACHED * cached) / parts
        self.now += self.scale * seconds
        self.now += bool(self.held_up) and self.num_batches % self.held_up == 0
        self.trees = [len(step.tree) for step in steps]

    def finish(self) -> list[Answers]:
        return [Answers(np.zeros(rows, dtype=np.int64)) for rows in self.trees]

    def abandon(self) -> None:
        pass

    def close(self, sequence: Sequence) -> None:
        self.open_ids.remove(sequence.id)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Machine]:
    def use(machine: Machine) -> Machine:
        monkeypatch.setattr(sequences.time, "perf_counter", lambda: machine.now)
        return machine

    return use


On = Callable[[Machine], Machine]


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("held_up", [0, 7])
def test_rows_sequences_and_cached_tokens_are_told_apart(num_parts: int, held_up: int, on: On) -> None:
    machine = on(Machine(num_parts, held_up))
    sequence_s, thousand_cached_s = measure_sequences(machine, 300, 4096)
    assert sequence_s == pytest.approx(SEQUENCE, rel=0.05)
    assert thousand_cached_s == pytest.approx(1000 * CACHED, rel=0.05)
    assert not machine.open_ids


def test_a_slow_machine_is_measured_in_a_bounded_time(on: On) -> None:
    """The figures are about those of SmolLM2-135M on one core, not compiled."""
    machine = on(Machine(scale=4.0))
    measure_sequences(machine, 300, 4096)
    assert machine.now < 2.5 and machine.longest < 1000


@pytest.mark.parametrize("max_length", [1, 2, 5, 40, 300, 1000])
def test_measuring_fits_a_short_context(max_length: int, on: On) -> None:
    machine = on(Machine(scale=0.01))
    measured = measure_sequences(machine, 3, max_length)
    assert min(measured) >= 0 and machine.longest <= max_length


def test_go_on_decides_whether_to_go_on(on: On) -> None:
    machine = on(Machine())
    assert measure_sequences(machine, 300, 4096, go_on=lambda wanted: False) == (0.0, 0.0)
    assert machine.longest == 256 and machine.num_batches == 4


def test_a_runner_that_fails_is_left_closed(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(Machine())
    monkeypatch.setattr(machine, "finish", lambda: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_sequences(machine, 300, 4096)
    assert not machine.open_ids


def test_a_tiny_model_is_measured_and_left_as_it_was(llama: Engine) -> None:
    model = llama.checkpoint.model
    before = llama.generate("def add(first", max_new_tokens=12).token_ids
    assert min(measure_sequences(llama.runner, model.vocab_size, model.max_length)) >= 0
    assert llama.runner.cache_bytes == 0
    assert llama.generate("def add(first", max_new_tokens=12).token_ids == before
