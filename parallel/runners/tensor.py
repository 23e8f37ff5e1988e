"""Tensor parallelism: every rank computes every step with its part of each layer (see parallel/sharding/tensor.py)."""

from __future__ import annotations

from functools import partial

from lp.model.causal import CausalModel
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.tree import Answers
from parallel.comm.base import Collectives


class TensorParallel(SingleDevice):
    """A SingleDevice that shares its model with other ranks. All of them call it with the same steps.

    The collectives of a step are launched without waiting; its answers count once they have been done.
    """

    def __init__(self, model: CausalModel, collectives: Collectives, prefill_chunk: int | None = None):
        super().__init__(model, prefill_chunk)
        self.collectives = collectives

    def launch(self, steps: list[StepInput]) -> Pending:
        """See SingleDevice. This, and what waits for the answers, raise RankLost as well."""
        with self.collectives.launching():
            pending = super().launch(steps)
        return partial(self._finish, pending)

    def _finish(self, pending: Pending) -> list[Answers]:
        with self.collectives.deferred():
            return pending()
