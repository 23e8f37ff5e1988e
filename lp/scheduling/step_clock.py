"""Times batches, compares their seconds with the step-time curve, and describes them for traces."""

from __future__ import annotations

from lp.runner.runner import Runner, SharedBy
from lp.runner.step_times.watch import StepWatch
from lp.scheduling.batch import Batch
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes
from lp.trace import BatchFigures


class StepClock:
    """Times batches from their start, or from the end of the one before, to their end.

    watch: compares the times with measured ones; None if there are none.
    """

    def __init__(self, step_times: StepTimes | None, runner: Runner):
        self.watch = step_times and StepWatch(step_times, runner.num_parts)
        self._runner = runner
        self._finished_at = 0.0
        # The batch that ended last, its seconds, and its description if a trace has asked for it.
        self._batch: Batch | None = None
        self._seconds = 0.0
        self._figures: BatchFigures | None = None

    def set_step_times(self, step_times: StepTimes) -> None:
        """Compares with other step times from now on."""
        assert self.watch is not None
        self.watch.take(step_times, self._runner.num_parts)

    def end(self, batch: Batch, finished_at: float) -> None:
        """Notes that a batch has ended."""
        began_at, self._finished_at = max(batch.started_at, self._finished_at), finished_at
        self._batch, self._seconds, self._figures = batch, finished_at - began_at, None
        if self.watch is not None and not batch.num_prefill:
            self.watch.note(batch.num_rows, len(batch.turns), batch.num_cached, self._seconds)

    def record(self, state: RequestState) -> None:
        """Gives a traced request the description of the batch that ended last, before the request is committed."""
        recorder, shared = state.recorder, self._runner.shared_by
        assert recorder
        if self._figures is None:
            self._figures = self._describe(shared)
        recorder.figures = self._figures
        if shared:
            recorder.ranks = shared.ranks.get(state.sequence.id)

    def _describe(self, shared: SharedBy | None) -> BatchFigures:
        batch, expected_s = self._batch, None
        assert batch is not None
        num_sequences, num_rows = len(batch.turns), batch.num_prefill
        num_rows += sum(len(turn.state.tree) for turn in batch.turns)
        if self.watch is not None:
            expected_s = self.watch.expected_s(num_rows, num_sequences, batch.num_cached)
        return BatchFigures(shared.most_rows if shared else num_rows, num_sequences, self._seconds, expected_s)
