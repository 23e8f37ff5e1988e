"""Step times are measured, on a runner and a clock that are made up and on a tiny model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from lp import Engine
from lp.request import Sequence
from lp.runner.runner import Runner, StepInput
from lp.runner.step_times import measure
from lp.runner.step_times.learn import LEAST_RISE, Trial
from lp.runner.step_times.measure import QUICK, THOROUGH, Trials, bushy_tree, measure_step_times, origin
from lp.step_cost import StepTimes
from lp.tree import Answers


class Machine(Runner):
    """A Runner and its clock. A step takes the time that `seconds(rows, number of the step)` returns."""

    cache_bytes = 0  # type: ignore[assignment]

    def __init__(self, seconds: Callable[[int, int], float]):
        self.seconds = seconds
        self.now = 0.0
        self.sizes: list[int] = []
        self.are_shared: list[bool] = []
        self.sequences: list[Sequence] = []
        self.is_open = False
        self._is_shared: bool | None = None

    def share_trees(self, is_shared: bool | None) -> None:
        self._is_shared = is_shared

    def open(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)
        self.is_open = True

    def start(self, steps: list[StepInput]) -> None:
        (step,) = steps
        assert self.is_open and step.tree.tokens[0] == step.sequence.tokens[-1] and step.num_candidates == 8
        self.sizes.append(len(step.tree))
        self.are_shared.append(bool(self._is_shared))

    def finish(self) -> list[Answers]:
        self.now += self.seconds(self.sizes[-1], len(self.sizes))
        return [Answers(np.zeros(self.sizes[-1], dtype=np.int64))]

    def abandon(self) -> None:
        pass

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        raise AssertionError("nothing is used again")

    def drop(self, sequence: Sequence) -> None:
        raise AssertionError("there is room")

    def close(self, sequence: Sequence) -> None:
        self.is_open = False


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], float]], Machine]:
    def make(seconds: Callable[[int, int], float]) -> Machine:
        machine = Machine(seconds)
        monkeypatch.setattr(measure.time, "perf_counter", lambda: machine.now)
        return machine

    return make


Make = Callable[[Callable[[int, int], float]], Machine]
ALL_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def test_each_size_gets_its_time(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.001 + rows / 10_000)
    times = measure_step_times(machine, 300, 4096, most_rows=128)
    assert times.rows == (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    assert times.seconds == pytest.approx([0.001 + rows / 10_000 for rows in times.rows])
    assert not machine.is_open
    (sequence,) = machine.sequences
    assert (len(sequence.tokens), sequence.sampling.temperature) == (256, 0.0)
    assert Counter(machine.sizes)[128] == 2 * THOROUGH.rounds[1]


def test_what_a_size_does_once_cuts_no_sizes_off(machine_of: Make) -> None:
    """A runner may capture a graph when a size is timed for the first time, as where ranks share trees."""
    steps: Counter[int] = Counter()

    def seconds(rows: int, _: int) -> float:
        steps[rows] += 1
        return 0.5 if rows > 1 and steps[rows] == measure.STEPS_PER_TIMING else 0.002

    times = measure_step_times(machine_of(seconds), 300, 4096, most_rows=128)
    assert times.rows == (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    assert times.seconds == pytest.approx([0.002 * (1 + LEAST_RISE * (rows - 1)) for rows in times.rows])


def test_a_step_continues_with_accepted_drafts_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that did not compute the accepted rows must then compute them, as in decoding."""
    machine = Machine(lambda rows, _: 0.001)
    seen: list[list[int]] = []
    start = machine.start
    monkeypatch.setattr(machine, "start", lambda steps: (seen.append(list(steps[0].sequence.tokens)), start(steps)))
    measure_step_times(machine, 300, 4096, most_rows=8)
    del seen[0], machine.sizes[0]  # the sequence is read before
    by_size = {rows: seen[place + 1][256:] for place, rows in enumerate(machine.sizes) if len(seen[place]) == 256}
    assert by_size == {1: [0], 2: [1, 0], 4: [1, 2, 3, 0], 8: [1, 2, 3, 0]}
    assert {len(tokens) for tokens in seen[::2]} == {256}


def test_times_when_the_machine_is_busy_do_not_count(machine_of: Make) -> None:
    machine = machine_of(lambda rows, number: (0.001 + rows / 10_000) * (50 if number % 7 == 0 else 1))
    times = measure_step_times(machine, 300, 4096, most_rows=64)
    assert times.seconds == pytest.approx([0.001 + rows / 10_000 for rows in times.rows])


def test_a_size_that_is_held_up_hardly_slows_larger_ones(machine_of: Make) -> None:
    times = measure_step_times(machine_of(lambda rows, _: (0.001 + rows / 10_000) * (1 + (rows == 2))), 300, 4096, 128)
    assert times.at(12) == pytest.approx(0.0022)
    assert times.at(8) < 0.0019


def test_the_first_step_of_a_size_is_a_warm_up(machine_of: Make) -> None:
    """The first step of a size finds the processor's caches as a step of another size has left them."""
    machine = machine_of(lambda rows, number: 0.001 if number % 2 else 0.005)  # step 1 reads the sequence
    assert measure_step_times(machine, 300, 4096, most_rows=8).seconds == pytest.approx([0.001] * 4, rel=0.03)


def test_a_slow_machine_is_measured_at_fewer_sizes_that_span_the_curve(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.5 + rows / 100)
    times = measure_step_times(machine, 300, 4096, most_rows=128)
    assert set(machine.sizes) == {1, 16, 64}
    assert times.rows == ALL_ROWS, "the others are on the lines through these"
    assert times.seconds == pytest.approx([0.5 + rows / 100 for rows in ALL_ROWS])
    assert Counter(machine.sizes)[64] == THOROUGH.rounds[0]


def test_a_real_model_on_a_slow_core_is_measured_in_four_seconds(machine_of: Make) -> None:
    """The figures are those of SmolLM2-135M on one core, not compiled."""
    machine = machine_of(lambda rows, number: 0.055 + rows * 0.0025 + (0.4 if number == 1 else 0))
    times = measure_step_times(machine, 300, 4096, most_rows=128)
    assert times.rows == ALL_ROWS and set(machine.sizes) == {1, 2, 4, 8, 16, 32, 64, 128}
    assert machine.now < 4


@pytest.mark.parametrize(("num_parts", "sizes", "most_s"), [(1, {1, 16}, 0.3), (2, {1, 16, 64}, 0.9)])
def test_a_program_that_starts_waits_for_a_few_steps_alone(
    num_parts: int, sizes: set[int], most_s: float, machine_of: Make
) -> None:
    """Where parts share trees, a large one too: whether it is shared follows from its time."""
    machine = machine_of(lambda rows, _: 0.01 + rows * 6e-4)
    machine.num_parts = num_parts
    times = measure_step_times(machine, 300, 4096, most_rows=128, effort=QUICK)
    assert machine.now < most_s and len(machine.sequences[0].tokens) == 32
    assert set(machine.sizes) >= sizes
    assert times.rows == ALL_ROWS and times.learnt_at > 0 and times.num_steps == 0
    assert times.seconds == pytest.approx([0.01 + rows * 6e-4 for rows in ALL_ROWS])


def test_a_trial_is_a_single_step(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.01 + rows * 6e-4)
    trials = Trials(machine, 300, 4096)
    assert trials.run(Trial(8, False, False)) is None and machine.sizes == [1], "the sequence is read first"
    served = trials.run(Trial(8, False, False))
    assert served is not None and served.seconds == pytest.approx(0.0148)
    assert (served.num_rows, served.is_shared, served.num_sequences, served.is_plain) == (8, False, 1, False)
    assert machine.sizes == [1, 8] and machine.is_open
    trials.close()
    assert not machine.is_open


def test_a_trial_of_ranks_that_share_trees_follows_one_of_its_kind(machine_of: Make) -> None:
    """Its accepted rows were computed by some ranks alone, as in decoding; the step before only prepares that."""
    machine = machine_of(lambda rows, _: 0.01 + rows * 6e-4)
    machine.num_parts = 2
    trials, shared, alone = Trials(machine, 300, 4096), Trial(8, True, False), Trial(8, False, False)
    (sequence,) = machine.sequences
    assert trials.run(shared) is None and trials.run(shared) is None
    assert sequence.tokens[32:] == [1, 2, 3, 0]
    served = trials.run(shared)
    assert served is not None and served.num_cached == 36 and len(sequence.tokens) == 32
    assert trials.run(shared) is None and trials.run(alone) is None, "another kind is prepared anew"
    assert len(sequence.tokens) == 36 and trials.run(alone) is not None
    assert machine.sizes == [1] + 5 * [8]


def test_the_steps_of_ranks_that_share_trees_come_in_pairs(machine_of: Make) -> None:
    """Only the second step of a pair has accepted rows that another rank has computed."""
    machine = machine_of(lambda rows, _: 0.1)
    machine.num_parts = 2
    measure_step_times(machine, 300, 4096, most_rows=64)
    assert Counter(machine.sizes)[64] == 2 * 2 * THOROUGH.rounds[0]  # shared, and by one rank alone


def test_a_machine_of_medium_speed_is_measured_fewer_times(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.05)
    times = measure_step_times(machine, 300, 4096, most_rows=128)
    assert len(times.rows) == 12
    assert machine.now < THOROUGH.first_round_s + THOROUGH.budget_s


def test_steps_that_ranks_share_and_those_of_one_alone_have_curves_of_their_own(machine_of: Make) -> None:
    machine = machine_of(lambda rows, number: 0.001 * rows * (1 if machine.are_shared[-1] else 2))
    machine.num_parts = 2
    times = measure_step_times(machine, 300, 4096, most_rows=64)
    assert times.num_parts == 2 and times.seconds == pytest.approx([0.001 * rows for rows in times.rows])
    assert times.alone is not None and times.alone.rows == times.rows
    assert times.alone.seconds == pytest.approx([2 * seconds for seconds in times.seconds])
    assert machine.are_shared[0], "every rank computes the prompt first"


def test_one_rank_has_one_curve(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.001)
    assert measure_step_times(machine, 300, 4096, most_rows=8).alone is None and all(machine.are_shared)


@pytest.mark.parametrize(("max_length", "cached", "rows"), [(1, 1, 1), (2, 1, 1), (40, 20, 16), (300, 150, 128)])
def test_measuring_fits_a_short_context(max_length: int, cached: int, rows: int, machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.001)
    times = measure_step_times(machine, 3, max_length, most_rows=128)
    assert times.rows[-1] == rows
    assert len(machine.sequences[0].tokens) == cached
    assert max(machine.sequences[0].tokens) < 3


def test_a_runner_that_fails_is_left_closed(machine_of: Make) -> None:
    def fail(rows: int, number: int) -> float:
        raise RuntimeError("out of memory")

    machine = machine_of(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_step_times(machine, 300, 4096, most_rows=8)
    assert not machine.is_open


def test_go_on_decides_whether_to_go_on(machine_of: Make) -> None:
    machine = machine_of(lambda rows, _: 0.001)
    wishes: list[bool] = []

    def refuse(wanted: bool) -> bool:
        wishes.append(wanted)
        return False

    times = measure_step_times(machine, 300, 4096, most_rows=128, go_on=refuse)
    assert set(machine.sizes) == {1, 16, 64} and times.rows == ALL_ROWS
    assert wishes == [False, True, True]  # single steps are enough; a fourth size; a second round


@pytest.mark.parametrize(
    ("num_steps", "age_s", "words"),
    [
        (0, 1, "measured just now"),
        (0, 7200, "measured 2 h ago"),
        (1, 5, "learnt from 1 step, the last 5 s ago"),
        (1204, 180, "learnt from 1,204 steps, the last 3 min ago"),
        (9, 3 * 86400, "learnt from 9 steps, the last 3 days ago"),
    ],
)
def test_the_origin_says_how_old_the_figures_are(num_steps: int, age_s: float, words: str) -> None:
    assert origin(StepTimes((1,), (1.0,), num_steps=num_steps, learnt_at=1e9), now=1e9 + age_s) == words


def test_a_bushy_tree_has_chains_of_four_under_its_root() -> None:
    tree = bushy_tree(7, 10, vocab_size=300)
    assert tree.tokens[0] == 7
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 0, 5, 6, 7, 0]
    assert tree.depths.max() == 4


def test_a_tiny_model_is_measured_and_left_as_it_was(llama: Engine) -> None:
    model = llama.checkpoint.model
    before = llama.generate("def add(first", max_new_tokens=12).token_ids
    times = measure_step_times(llama.runner, model.vocab_size, model.max_length, most_rows=32)
    assert times.rows == (1, 2, 4, 8, 12, 16, 24, 32)
    assert times.seconds[-1] >= times.seconds[0] > 0
    assert llama.runner.cache_bytes == 0
    assert llama.generate("def add(first", max_new_tokens=12).token_ids == before
