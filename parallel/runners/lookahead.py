"""Lookahead parallelism (arXiv 2402.02057, section 3.4): every rank holds the whole model and computes a part of each
token tree. One exchange of small integers then gives every rank all answers. Besides these, a replica that lacks many
tokens of a sequence gets their keys and values from another one, where that costs less than computing them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Items
from functools import partial

import numpy as np

from lp.kv_cache.cache import KVCache
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import ForwardRunner, Pending, SingleDevice
from lp.step_cost import StepTimes
from lp.tree import Answers
from parallel.comm.base import Messages
from parallel.comm.channel import Channel
from parallel.comm.rows import Table
from parallel.runners.copy_cost import Copy, CopyCost, plan_copies
from parallel.runners.copying import Copying
from parallel.runners.merging import answers_of, fingerprint_of, rows_of, tables_of
from parallel.runners.prefill_split import compute_part
from parallel.runners.shares import KnownTokens, Shares, idle_replicas, shared_by
from parallel.runners.sharing import Sharing


class LookaheadParallel(ForwardRunner):
    """A Runner around this rank's own runner. All ranks call it with the same batches in the same order.

    A replica is a single rank or a tensor-parallel group, whose ranks all compute the same parts. Each replica holds
    every sequence.

    num_rests: the number of batches of which this rank computed nothing. shared_by: see Runner. copying: copies
    keys and values between replicas; None if that cannot be done.
    """

    def __init__(
        self,
        inner: SingleDevice,
        channel: Channel,
        ranks_per_replica: int = 1,
        messages: Messages | None = None,
        sharing: Sharing | None = None,
        prefill_chunk: int | None = None,
        drafts_ahead: bool = False,
    ):
        """inner: this rank's own runner. ranks_per_replica: number of neighbouring ranks that hold one replica.
        messages: for keys and values; None if nothing is copied. sharing: which replica computes what, the same on all
        ranks. prefill_chunk: the least that any rank has; None is this one's. drafts_ahead: see Runner.
        """
        super().__init__()
        self.inner = inner
        self.prefill_chunk = prefill_chunk or inner.prefill_chunk
        self.channel = channel
        self.ranks_per_replica = ranks_per_replica
        self.sharing = sharing or Sharing()
        self.num_replicas = channel.num_ranks // ranks_per_replica
        self.drafts_ahead = drafts_ahead
        self.num_parts = 1 if self.sharing.owners is not None else self.num_replicas
        self.num_rests = 0
        self._replica = channel.rank // ranks_per_replica
        if inner.model.is_recurrent:
            messages = None  # keys and values are of no use without the states of recurrent layers
        self.copying = Copying(inner, messages, channel.rank, ranks_per_replica) if messages is not None else None
        self.can_copy = self.copying is not None
        # By sequence id, made at a sequence's first step: the runner of an earlier epoch may have opened the sequence.
        self._known: defaultdict[str, KnownTokens] = defaultdict(lambda: KnownTokens(self.num_replicas))
        # The replicas that draft ahead of the present batch; what this one sends of its drafts, and all have sent.
        self._idle: list[int] = []
        self._own_drafts: np.ndarray | None = None
        self._all_drafts: np.ndarray | None = None

    @property
    def cache_bytes(self) -> int:
        return self.inner.cache_bytes

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        length = self.inner.copy(source, target, length)
        known = self._known[source.id].count(source.tokens)
        self._known[target.id].numbers = [min(number, length) for number in known]
        return length

    @property
    def can_split(self) -> bool:
        """Whether several replicas can compute a prompt together."""
        return self.can_copy and self.ranks_per_replica == 1 and self.inner.model.runs_by_layer

    def use_times(self, times: StepTimes) -> None:
        self.sharing.use_times(times)
        if self.can_copy:
            self.sharing.copy_cost = CopyCost.of(times, self.can_split * self.inner.model.num_layers)

    def share_trees(self, is_shared: bool | None) -> None:
        self.sharing.is_shared = is_shared

    def time_copy(self, sequence: Sequence, num_tokens: int) -> float:
        assert self.copying is not None
        begin = time.perf_counter()
        self.copying.carry_out([Copy(0, 0, 1, 0, num_tokens)], [sequence])
        self.channel.compare(np.zeros(1, np.int32))
        taken = time.perf_counter() - begin
        if self._replica == 1:
            self.inner.committed_cache(sequence).shorten(0)  # its memory stays, as that of a sequence that it follows
        return taken

    def drop(self, sequence: Sequence) -> None:
        self.inner.drop(sequence)
        self.sharing.forget(sequence.id)
        self._known.pop(sequence.id, None)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)
        self.sharing.forget(sequence.id)
        self._known.pop(sequence.id, None)

    @property
    def is_asynchronous(self) -> bool:
        return self.inner.is_asynchronous

    def num_cached(self, sequence_id: str, tokens: list[int]) -> int:
        return self.inner.num_cached(sequence_id, tokens)

    def find_cache(self, sequence_id: str, tokens: list[int]) -> KVCache | None:
        return self.inner.find_cache(sequence_id, tokens)

    def send_ahead(self, drafts: np.ndarray) -> None:
        self._own_drafts = drafts

    def take_ahead(self) -> np.ndarray | None:
        drafts, self._all_drafts = self._all_drafts, None
        return drafts

    def compare_caches(self, running: Items[tuple[str, list[int]]]) -> None:
        """Tells all ranks what each holds of the sequences that another runner has left. No step may be under way.

        running: id and tokens of each sequence, the same on all ranks. Raises RankLost.
        """
        if not running:
            return
        own = [self.inner.num_cached(name, tokens) for name, tokens in running]
        held = self.channel.compare(np.array(own, np.int32))  # [ranks, sequences]
        by_replica = held.reshape(self.num_replicas, self.ranks_per_replica, len(own)).min(axis=1)
        for (name, _), numbers in zip(running, by_replica.T.tolist(), strict=True):
            self._known[name].numbers = numbers

    def launch(self, steps: list[StepInput]) -> Pending:
        """Starts this replica's parts; the exchange is part of the wait for the answers.

        A replica without rows takes part in the exchange alone. It gets what it lacks of a sequence when it has rows of
        it again.
        """
        all_known = [self._known[step.sequence.id] for step in steps]
        numbers = [known.count(step.sequence.tokens) for known, step in zip(all_known, steps, strict=True)]
        all_shares = self.sharing.share(steps, numbers)
        is_ahead = any(step.is_ahead for step in steps)
        self.shares_step = not is_ahead and (len(steps) > 1 or len(all_shares[0].rows) > 1)
        self._idle = idle_replicas(all_shares, self.num_replicas) if is_ahead else []
        self.num_ahead = len(self._idle)
        self.ahead_place = self._idle.index(self._replica) if self._replica in self._idle else None
        self.shared_by = shared_by(steps, numbers, all_shares, self.ranks_per_replica, self._idle)
        copies = plan_copies(steps, numbers, all_shares, self.sharing.copy_cost) if self.can_copy else []
        for known, step, shares in zip(all_known, steps, all_shares, strict=True):
            known.note(step.tree, len(step.sequence.tokens), shares)
        parts = [shares.part(step, self._replica) for step, shares in zip(steps, all_shares, strict=True)]
        own = [part for part in parts if part is not None]
        self.num_rests += not own
        self._gather_caches(steps, all_shares, copies, own)
        return partial(self._all_answers, steps, all_shares, self.inner.launch(own) if own else list)

    def _gather_caches(
        self, steps: list[StepInput], all_shares: list[Shares], copies: list[Copy], own: list[StepInput]
    ) -> None:
        """Gets what others have computed or compute of this replica's parts, and gives them what they need."""
        if self.copying is None:
            return
        if any(copy.target == self._replica for copy in copies):  # what is only sent must not be evicted before
            self.inner.make_room(own)
        self.copying.carry_out(copies, [step.sequence for step in steps])
        for step, shares in zip(steps, all_shares, strict=True):
            if shares.split:
                self.inner.make_room(own)
                compute_part(self.copying, shares.split, step.sequence)

    def _all_answers(self, steps: list[StepInput], all_shares: list[Shares], pending: Pending) -> list[Answers]:
        own, tables = rows_of(pending()), tables_of(steps, all_shares)
        drafts, self._own_drafts = self._own_drafts, None
        if drafts is not None:  # one more table, which has a row of each rank that drafts
            places = {replica: [place] for place, replica in enumerate(self._idle)}
            tables.append(Table(places, np.empty((self.num_ahead, len(drafts)), np.int32)))
            if self.ahead_place is not None:
                own.append(drafts[None])
        self.channel.gather_rows(own, tables, fingerprint_of(steps), self.ranks_per_replica)
        if drafts is not None:
            self._all_drafts = tables.pop().numbers
        return answers_of(steps, tables)
