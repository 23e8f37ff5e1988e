"""Compares the seconds of batches with the step-time curve, and describes them for traces."""

from __future__ import annotations

from lp.runner.runner import Runner, SharedBy
from lp.runner.step_times.watch import StepWatch
from lp.scheduling.batch import Batch
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes
from lp.trace import BatchFigures


class StepClock:
    """Times batches, from their start or from the end of the one before.

    watch: compares the times with measured ones; None if there are none.
    """

    def __init__(self, step_times: StepTimes | None, runner: Runner):
        self.watch = step_times and StepWatch(step_times, runner.num_parts)
        self._runner = runner
        self._finished_at = 0.0
        # The batch that was described last, for traces of its requests.
        self._described: Batch | None = None
        self._figures: BatchFigures

    def set_step_times(self, step_times: StepTimes) -> None:
        """Compares with other step times from now on."""
        assert self.watch is not None
        self.watch.take(step_times, self._runner.num_parts)

    def end(self, batch: Batch, finished_at: float) -> None:
        """Notes when a batch has ended."""
        batch.seconds = finished_at - max(batch.started_at, self._finished_at)
        self._finished_at = finished_at

    def compare(self, batch: Batch) -> None:
        """Compares the seconds of a batch that has ended with the curve."""
        if self.watch is not None and not batch.num_prefill:
            self.watch.note(batch.num_rows, len(batch.turns), batch.num_cached, batch.seconds)

    def record(self, state: RequestState, batch: Batch) -> None:
        """Gives a traced request the description of the batch that ended last, before the request is committed."""
        recorder, shared = state.recorder, self._runner.shared_by
        assert recorder
        if self._described is not batch:
            self._described, self._figures = batch, self._describe(batch, shared)
        recorder.figures = self._figures
        if shared:
            recorder.ranks = shared.ranks.get(state.sequence.id)

    def _describe(self, batch: Batch, shared: SharedBy | None) -> BatchFigures:
        num_sequences, expected_s = len(batch.turns), None
        num_rows = batch.num_prefill + sum(len(turn.state.tree) for turn in batch.turns)
        if self.watch is not None:
            expected_s = self.watch.expected_s(num_rows, num_sequences, batch.num_cached)
        return BatchFigures(shared.most_rows if shared else num_rows, num_sequences, batch.seconds, expected_s)
