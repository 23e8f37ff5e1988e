"""The batches of steps that a runner has under way: what a batch consists of, and whose answers it brings.

Knows neither texts nor requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lp.generation import Generation
from lp.runner import Runner, StepInput
from lp.scheduling.budget import plan_together
from lp.scheduling.scheduler import Batch, Scheduler, Turn
from lp.step_cost import StepTimes
from lp.verification import Answers


class Batches:
    """Starts batches of steps on a runner, and finishes them in the same order.

    fingerprints: whether every step carries a checksum of its generation's state. max_length: most tokens of a
    sequence. step_times: the runner's; None if they are not known.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        max_length: int,
        step_times: StepTimes | None,
        fingerprints: bool = False,
    ):
        self.scheduler = scheduler
        self.runner = runner
        self.fingerprints = fingerprints
        self._max_length = max_length
        self._step_times = step_times
        self._under_way: deque[Batch] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def generations(self) -> Iterator[Generation]:
        """Those with a step under way."""
        return (turn.generation for batch in self._under_way for turn in batch.turns)

    def start(self) -> None:
        """Starts batches until the runner takes no more, or nobody waits."""
        for generation in self.scheduler.preempted():
            self.runner.drop(generation.sequence)
            generation.num_fed = 0
        while len(self._under_way) < self.runner.depth and (turns := self.scheduler.next_batch(self.runner.depth)):
            self.runner.start(self._plan(turns))
            self.scheduler.start(turns)  # after the runner: if that fails, they can still be cancelled
            self._under_way.append(Batch(turns))

    def finish(self) -> list[tuple[Turn, Answers]]:
        """Waits for the oldest batch. Its generations wait for their next step then."""
        batch = self._under_way.popleft()  # before `finish`: if that fails, no answers will come
        answers = batch.answers or self.runner.finish()
        for turn in batch.turns:
            self.scheduler.finish(turn.generation)
        return list(zip(batch.turns, answers, strict=True))

    def withdraw(self, generation: Generation) -> None:
        """Removes a generation with a step under way, after waiting for its batch and all earlier ones."""
        for batch in list(self._under_way):
            if batch.answers is None:
                batch.answers = self.runner.finish()
            if generation in batch:
                batch.remove(generation)
                if not batch.turns:
                    self._under_way.remove(batch)
                return

    def _plan(self, turns: list[Turn]) -> list[StepInput]:
        """Plans the steps of a batch: all trees together, as they share the time of a step."""
        decoding = [turn.generation for turn in turns if turn.decodes]
        rooms = [self._max_length - len(generation.sequence.tokens) for generation in decoding]
        num_fed = sum(turn.num_fed - turn.generation.num_fed for turn in turns)
        trees = iter(plan_together(decoding, rooms, self._step_times, self.runner.num_parts, num_fed))
        steps: list[StepInput] = []
        for turn in turns:
            generation, decoder = turn.generation, turn.generation.decoder
            if not turn.decodes:
                steps.append(StepInput(generation.sequence, generation.feed(turn.num_fed), turn.num_fed))
                continue
            fingerprint = generation.fingerprint() if self.fingerprints else 0
            step = StepInput(generation.sequence, next(trees), turn.num_fed, decoder.num_candidates, fingerprint)
            step.is_shared = decoder.is_shared
            steps.append(step)
        return steps
