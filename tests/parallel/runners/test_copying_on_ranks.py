"""Real ranks copy keys and values, equal to computed ones to the bit, and compute again whatever is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lp import Autoregressive, Engine, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.copies import measure_copies
from lp.step_cost import Extras, StepTimes
from lp.tree import NO_ROWS, chain
from parallel.build import find_messages, share_steps
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners import copying
from parallel.runners.copy_cost import CopyCost
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.shares import Shares
from parallel.runners.sharing import Sharing
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.native import native

__all__ = ["native"]
GREEDY = Sampling(temperature=0.0, seed=3)
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(120)]
FREE = CopyCost(0.0, 0.01, least=1)
# So that a copy takes several messages.
MESSAGE_BYTES = 4096


class InTurn(Sharing):
    """Every step is computed by one replica, and each step by the next one."""

    def __init__(self) -> None:
        super().__init__(FREE)
        self._number = -1

    def share(self, steps, numbers):
        self._number += 1
        return [Shares.whole(step, self._number % len(numbers[0])) for step in steps]


def runner_of(
    folder: str, channel: Channel, dtype: str = "float32", compile: CompileMode = CompileMode.auto
) -> LookaheadParallel:
    copying.MESSAGE_BYTES = MESSAGE_BYTES
    alone = SingleDevice(load(ModelSettings(folder, dtype, "cpu", compile=compile)).model, prefill_chunk=32)
    messages = find_messages(alone, channel)
    assert messages is not None
    return LookaheadParallel(alone, channel, messages=messages, sharing=InTurn())


def decode(runner: LookaheadParallel, sequence: Sequence, num_steps: int) -> None:
    """Takes turns at a sequence that has been opened: its prompt in chunks, then a token a step."""
    for num_computed in range(30, len(sequence.tokens) - 1, 30):
        runner.launch([StepInput(sequence, NO_ROWS, num_computed)])()
    for _ in range(num_steps):
        (answers,) = runner.launch([StepInput.of(sequence, chain(sequence.tokens[-1:]))])()
        sequence.tokens.append(int(answers.targets[0]))


def take_turns(mesh: Mesh, channel: Channel, folder: str, dtype: str, loses: bool) -> tuple[list[int], list[int], bool]:
    """The tokens of a text whose ranks take turns at it; tokens that were copied here after the prompt and at the end;
    and whether all keys and values are those that one rank has computed alone. loses: whether caches are lost between
    two steps.
    """
    runner = runner_of(folder, channel, dtype, CompileMode.on)
    sequence, alone = (Sequence(name, list(PROMPT), len(PROMPT), GREEDY) for name in ("turns", "alone"))
    runner.open(sequence)
    decode(runner, sequence, 1)
    assert runner.copying is not None
    copied = [runner.copying.num_tokens]
    for number in range(12):
        if loses and number % 4 == 3:  # of the rank that sends, or of the one that receives
            lost = runner.inner.committed_cache(sequence)
            if mesh.rank == number // 4 % 2:
                lost.evict()
            else:
                lost.length = min(lost.length, 50)
        decode(runner, sequence, 1)
    copied.append(runner.copying.num_tokens)
    runner.inner.open(alone)
    alone.tokens = list(sequence.tokens)
    runner.inner.launch([StepInput(alone, NO_ROWS, len(alone.tokens) - 1)])()
    one, other = (runner.inner.committed_cache(each) for each in (sequence, alone))
    return sequence.tokens, copied, bool((one.export(0, one.length) == other.export(0, one.length)).all())


@pytest.mark.parametrize(
    ("num_ranks", "exchange", "dtype", "loses"),
    [
        (2, "shm", "bfloat16", False),
        (3, "gloo", "float32", False),
        (2, "shm", "float32", True),
        pytest.param(2, "gloo", "bfloat16", True, marks=pytest.mark.slow),
        pytest.param(4, "shm", "bfloat16", False, marks=pytest.mark.slow),
    ],
)
def test_copied_keys_and_values_are_the_computed_ones_to_the_bit(
    num_ranks: int, exchange: str, dtype: str, loses: bool, native: Callable[..., str]
) -> None:
    folder = native("llama", dtype)
    results = run_ranks(take_turns, num_ranks, folder, dtype, loses, exchange=exchange)
    engine = Engine.from_pretrained(folder, dtype, "cpu", compile="on", step_times="off")
    stopping = Stopping(13, ignore_eos=True)
    expected = engine.generate(PROMPT, decode=Autoregressive(), sampling=GREEDY, stopping=stopping).token_ids
    for tokens, (after_prompt, at_end), is_same in results:
        assert tokens[len(PROMPT) :] == expected
        assert is_same and at_end > max(after_prompt, 60)
    if not loses:
        last = [at_end for _, (_, at_end), _ in results]
        assert max(last) <= len(PROMPT) + 12, "no token is copied twice to the same rank"


def measure(mesh: Mesh, channel: Channel, folder: str) -> tuple[float, float, int, int]:
    runner = share_steps(SingleDevice(load(ModelSettings(folder, device="cpu")).model), channel)
    assert isinstance(runner, LookaheadParallel) and runner.can_copy
    times = measure_copies(runner, 50, 200)
    runner.use_times(StepTimes((1, 64), (0.01, 0.02), extras=Extras(copy=times.copy_s, copied_token=times.token_s)))
    cost = runner.sharing.copy_cost
    assert cost.per_token == pytest.approx(times.token_s / (0.01 / 63))
    return times.copy_s, times.token_s, runner.cache_bytes, channel.num_steps


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_copies_are_measured_and_leave_nothing_behind(exchange: str, checkpoint_folder: Callable[[str], Path]) -> None:
    for copy_s, token_s, num_bytes, num_steps in run_ranks(
        measure, 2, str(checkpoint_folder("llama")), exchange=exchange
    ):
        assert copy_s >= 0 and token_s > 0 and num_bytes == 0 and num_steps == 1


def differ(mesh: Mesh, channel: Channel, folder: str) -> bool:
    dtype = "bfloat16" if mesh.rank == 1 else "float32"
    runner = share_steps(SingleDevice(load(ModelSettings(folder, dtype, "cpu")).model), channel)
    assert isinstance(runner, LookaheadParallel)
    runner.use_times(StepTimes((1, 64), (0.01, 0.02), extras=Extras(copy=1e-6, copied_token=1e-6)))
    return runner.can_copy or runner.sharing.copy_cost.pays(1000)


def test_ranks_with_other_caches_copy_nothing(checkpoint_folder: Callable[[str], Path]) -> None:
    assert run_ranks(differ, 2, str(checkpoint_folder("llama"))) == [False, False]


def many_at_once(mesh: Mesh, channel: Channel, folder: str) -> tuple[int, list[list[int]]]:
    """Ranks that all send and receive in one step, far more than fits into shared memory."""
    runner = runner_of(folder, channel)
    assert runner.copying is not None
    sequences = [Sequence(str(number), [*PROMPT, number + 2], 121, GREEDY) for number in range(6)]
    for sequence in sequences:
        runner.open(sequence)
    runner.sharing = Spread(0)
    runner.launch([StepInput(sequence, NO_ROWS, 120) for sequence in sequences])()
    runner.sharing = Spread(1)
    answers = runner.launch([StepInput.of(sequence, chain(sequence.tokens[-1:])) for sequence in sequences])()
    return runner.copying.num_tokens, [np.asarray(one.targets).tolist() for one in answers]


class Spread(Sharing):
    """Each sequence of a batch is computed by another replica; `shift` says by which."""

    def __init__(self, shift: int):
        super().__init__(FREE)
        self.shift = shift

    def share(self, steps, numbers):
        return [Shares.whole(step, (number + self.shift) % len(numbers[0])) for number, step in enumerate(steps)]


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_ranks_send_to_each_other_in_one_step(exchange: str, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    results = run_ranks(many_at_once, 3, folder, exchange=exchange)
    assert [copied for copied, _ in results] == [240] * 3
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off")
    expected = [
        engine.generate([*PROMPT, number + 2], max_new_tokens=1, decode=Autoregressive(), sampling=GREEDY).token_ids
        for number in range(6)
    ]
    assert all(answers == expected for _, answers in results)
