"""What a runner has under way: batches of steps, which are timed from their start to their end."""

from __future__ import annotations

from dataclasses import dataclass

from lp.calibration.watch import StepWatch
from lp.generation import Generation
from lp.runner import Runner, SharedBy, SharesSteps
from lp.scheduling.scheduler import Turn
from lp.step_cost import StepTimes
from lp.trace.recorder import BatchFigures
from lp.verification import Answers


@dataclass
class Batch:
    """Generations whose steps were started together.

    answers: one for each of them; None until the runner has finished the batch. watched: if its time is compared with
    the measured one, its rows and whether all parts share them. started_at: in seconds of time.perf_counter().
    num_fed: rows of prompts in it.
    """

    turns: list[Turn]
    answers: list[Answers] | None = None
    watched: tuple[int, bool] | None = None
    started_at: float = 0.0
    num_fed: int = 0

    def __contains__(self, generation: Generation) -> bool:
        return any(turn.generation is generation for turn in self.turns)

    def remove(self, generation: Generation) -> None:
        """Removes a generation and its answers, which must be there already."""
        assert self.answers is not None
        at = next(at for at, turn in enumerate(self.turns) if turn.generation is generation)
        del self.turns[at], self.answers[at]


class StepClock:
    """Times batches from their start, or from the end of the one before, to their end.

    watch: compares the times with measured ones; None if there are none.
    """

    def __init__(self, step_times: StepTimes | None, runner: Runner):
        self.watch = step_times and StepWatch(step_times, runner.num_replicas)
        self._shares = runner if isinstance(runner, SharesSteps) else None
        self._finished_at = 0.0
        # The batch that ended last, its seconds, and what traces say of it if that was asked for.
        self._batch, self._seconds = Batch([]), 0.0
        self._figures: BatchFigures | None = None

    def end(self, batch: Batch, finished_at: float) -> None:
        """Notes that a batch has ended."""
        began_at, self._finished_at = max(batch.started_at, self._finished_at), finished_at
        self._batch, self._seconds, self._figures = batch, finished_at - began_at, None
        if self.watch is not None and batch.watched is not None:
            num_rows, is_shared = batch.watched
            self.watch.note(num_rows, len(batch.turns), _num_cached(batch), self._seconds, is_shared)

    def record(self, generation: Generation) -> None:
        """Tells a generation that is traced what the batch was that ended last. Nothing of it may be settled."""
        recorder, shared = generation.recorder, self._shares and self._shares.shared_by
        assert recorder
        if self._figures is None:
            self._figures = self._described(shared)
        recorder.figures = self._figures
        if shared:
            recorder.ranks = shared.ranks.get(generation.sequence.id)

    def _described(self, shared: SharedBy | None) -> BatchFigures:
        batch, expected_s = self._batch, None
        num_sequences, num_rows = len(batch.turns), batch.num_fed
        for turn in batch.turns:
            num_rows += len(turn.generation.tree)
        if self.watch is not None:
            is_shared = batch.turns[0].generation.decoder.is_shared
            expected_s = self.watch.expected_s(num_rows, num_sequences, _num_cached(batch), is_shared)
        return BatchFigures(shared.most_rows if shared else num_rows, num_sequences, self._seconds, expected_s)


def _num_cached(batch: Batch) -> int:
    """Tokens in the caches of a batch's sequences."""
    return sum(len(turn.generation.sequence.tokens) for turn in batch.turns)
