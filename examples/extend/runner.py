"""A runner of one's own: it computes on another runner, and notes what each batch of steps was and how long it took.

python -m examples.extend.runner
"""

from __future__ import annotations

import time
from typing import NamedTuple

from lp import Engine
from lp.request import Sequence
from lp.runner.runner import Runner, StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import Answers


class Batch(NamedTuple):
    """One batch: its sequences, the rows of their trees, and the seconds from its start to its answers."""

    num_sequences: int
    num_rows: int
    seconds: float


class TracingRunner(Runner):
    """See Runner. All but `start` and `finish` is handed on as it is."""

    def __init__(self, inner: Runner):
        self.inner = inner
        self.depth, self.num_parts = inner.depth, inner.num_parts
        self.batches: list[Batch] = []
        self._under_way: list[tuple[int, int, float]] = []

    @property
    def is_asynchronous(self) -> bool:
        return self.inner.is_asynchronous

    @property
    def cache_bytes(self) -> int:
        return self.inner.cache_bytes

    def start(self, steps: list[StepInput]) -> None:
        self._under_way.append((len(steps), sum(len(step.tree) for step in steps), time.perf_counter()))
        self.inner.start(steps)

    def finish(self) -> list[Answers]:
        answers = self.inner.finish()
        num_sequences, num_rows, begin = self._under_way.pop(0)
        self.batches.append(Batch(num_sequences, num_rows, time.perf_counter() - begin))
        return answers

    def abandon(self) -> None:
        self._under_way.clear()
        self.inner.abandon()

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def copy(self, source: Sequence, target: Sequence, length: int) -> None:
        self.inner.copy(source, target, length)

    def drop(self, sequence: Sequence) -> None:
        self.inner.drop(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)


def main(path: str = "demo/python-11m") -> tuple[list[int], list[int], list[Batch]]:
    """Decodes a prompt with the engine's own runner and with this one. Returns the tokens of both, and the batches."""
    usual = Engine.from_pretrained(path, step_times="off")
    runner = TracingRunner(SingleDevice(usual.checkpoint.model))
    traced = Engine(usual.checkpoint, runner)
    texts = [engine.generate("def fibonacci(n):", max_new_tokens=32).token_ids for engine in (usual, traced)]
    for batch in runner.batches[:5]:
        print(f"{batch.num_rows} rows of {batch.num_sequences} sequences in {1000 * batch.seconds:.1f} ms")
    return texts[0], texts[1], runner.batches


if __name__ == "__main__":
    main()
