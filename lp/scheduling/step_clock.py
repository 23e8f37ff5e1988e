"""Times batches, lets step times be learnt from them, and describes them for traces."""

from __future__ import annotations

from lp.runner.runner import Runner, SharedBy
from lp.runner.step_times.learn import ServedStep, StepTimesLearner
from lp.scheduling.batch import Batch
from lp.scheduling.request_state import RequestState
from lp.trace import BatchFigures


class StepClock:
    """Times batches, from their start or from the end of the one before.

    learner: what step times are expected by; None if there are none to begin with. learns: whether it learns.
    """

    def __init__(self, learner: StepTimesLearner | None, runner: Runner):
        self.learner, self.learns = learner, False
        self._runner = runner
        self._finished_at = 0.0
        # The batch that was described last, for traces of its requests.
        self._described: Batch | None = None
        self._figures: BatchFigures

    def end(self, batch: Batch, finished_at: float) -> None:
        """Notes when a batch has ended."""
        batch.host_s = max(0.0, batch.started_at - self._finished_at)
        batch.seconds = finished_at - max(batch.started_at, self._finished_at)
        self._finished_at = finished_at

    def learn(self, batch: Batch) -> None:
        """Learns from a batch that has ended. One that prefills prompts takes as long as their chunks are."""
        if self.learner is not None and self.learns:
            self.learner.learn(None if batch.num_prefill else self._served(batch))

    def record(self, state: RequestState, batch: Batch) -> None:
        """Gives a traced request the description of the batch that ended last, before the request is committed."""
        recorder, shared = state.recorder, self._runner.shared_by
        assert recorder
        if self._described is not batch:
            self._described, self._figures = batch, self._describe(batch, shared)
        recorder.figures = self._figures
        if shared:
            recorder.ranks, recorder.drafting = shared.ranks.get(state.sequence.id), shared.drafting

    def _served(self, batch: Batch) -> ServedStep:
        first, is_plain = batch.steps[0], all(len(step.tree) == 1 and not step.num_candidates for step in batch.steps)
        is_sampled, is_shared = first.sequence.sampling.temperature != 0, self._runner.shares_step
        return ServedStep(
            batch.num_rows, is_shared, len(batch.turns), batch.num_cached, is_plain, is_sampled, batch.seconds,
            batch.host_s,
        )  # fmt: skip

    def _describe(self, batch: Batch, shared: SharedBy | None) -> BatchFigures:
        num_rows = batch.num_prefill + sum(len(turn.state.tree) for turn in batch.turns)
        expected_s = None if self.learner is None else self.learner.expected_s(self._served(batch))
        return BatchFigures(shared.most_rows if shared else num_rows, len(batch.turns), batch.seconds, expected_s)
