"""The interface of runners. A runner holds the model and the KV caches, and computes the answers for token trees.

Parallelism is a property of the runner alone: lp/runner/single_device.py has the runner for a single device, and
`parallel.runners` has those for several ranks. No runner knows what a window or a draft is.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lp.kv_cache.cache import KVCache
from lp.model.fast_forward import PREFILL_CHUNK
from lp.request import Sequence
from lp.step_cost import StepTimes
from lp.tree import Ahead, Answers, TokenTree


@dataclass(slots=True)
class StepInput:
    """One step of one sequence: rows to answer, or a part of the sequence that is only computed, for rows to follow.

    sequence: a sequence that the runner has opened. tree: the rows to answer; its root is the sequence's last token. An
    empty tree answers nothing. num_computed: how many of the sequence's first tokens have been computed after this
    step; with a tree, all but the last.
    is_ahead: whether one part computes the trees of its batch while the others draft ahead of them.
    num_candidates: K, how many of the best tokens to return for each row; 0 is the target alone. fingerprint: checksum
    of the sequence's and the decoder's state, for ranks to compare; 0 if they do not.
    """

    sequence: Sequence
    tree: TokenTree
    num_computed: int
    num_candidates: int = 0
    fingerprint: int = 0
    is_ahead: bool = False

    @staticmethod
    def of(sequence: Sequence, tree: TokenTree, num_candidates: int = 0) -> StepInput:
        """A step that answers the rows of a tree."""
        return StepInput(sequence, tree, len(sequence.tokens) - 1, num_candidates)

    @property
    def num_columns(self) -> int:
        """The number of columns of the step's packed answers (see Answers.pack)."""
        sampling, ahead = self.sequence.sampling, self.ahead
        num_top = sampling.logprobs if self.tree.scored is None else sampling.prompt_logprobs
        num_first = max(1, self.num_candidates) + (0 if num_top is None else 1 + 2 * num_top)
        return num_first + (ahead.num_columns if ahead else 0) + self.sequence.num_hidden

    @property
    def ahead(self) -> Ahead | None:
        """What is asked of heads for each row; None for nothing."""
        return self.sequence.ahead if self.tree.scored is None else None

    def unpack(self, packed: np.ndarray) -> Answers:
        """The answers to all rows, or to some of them, from their packed ones, int32 [rows, columns]."""
        return Answers.unpack(packed, self.num_candidates, self.ahead, self.sequence.num_hidden)


class SharedBy(NamedTuple):
    """Who computed what of the batch that was finished last.

    ranks: for each sequence that is traced, by its id, a character for each row of its tree (see StepTrace).
    most_rows: rows of the rank with the most, prompts and what it lacked of sequences included. drafting: the ranks
    that drafted ahead of it.
    """

    ranks: dict[str, str]
    most_rows: int
    drafting: Items[int] = ()


class Runner(Protocol):
    """Computes batches of steps. They are finished in the order in which they were started.

    What has a default here need not be implemented by a subclass.

    depth: most batches that may be under way at the same time. num_parts: number of parts that a tree is split into.
    is_asynchronous: whether `start` only gives a device its work, so that the host can do something else until
    `finish`. It must be the same on all ranks. cache_bytes: size of this rank's KV caches. shared_by: None if nothing
    of the batch is traced, or one rank computes everything. shares_step: whether several parts computed trees of the
    batch that was started last. drafts_ahead: whether one part can compute a batch while the others draft ahead of it
    (see StepInput.is_ahead). ahead_place, num_ahead: the place of this part among those that draft ahead of the batch
    that was started last, None if it does not; and their number. can_copy: whether its parts can copy keys and values
    from each other. prefill_chunk: most rows of a prompt in one forward, the same on all ranks.
    """

    depth: int = 1
    num_parts: int = 1
    shared_by: SharedBy | None = None
    shares_step: bool = True
    drafts_ahead: bool = False
    ahead_place: int | None = None
    num_ahead: int = 0
    can_copy: bool = False
    prefill_chunk: int = PREFILL_CHUNK

    @property
    def is_asynchronous(self) -> bool: ...

    @property
    def cache_bytes(self) -> int: ...

    def open(self, sequence: Sequence) -> None:
        """Makes a sequence known, so that steps of it can be started."""
        ...

    def start(self, steps: list[StepInput]) -> None:
        """Starts a batch of steps, no two of the same sequence."""
        ...

    def finish(self) -> list[Answers]:
        """Waits for the oldest batch under way. Returns the answers of each step, for every row of its tree."""
        ...

    def abandon(self) -> None:
        """Drops all batches under way; their answers are not needed."""
        ...

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        """Gives a sequence of which nothing has been computed what was computed of another one with the same first
        tokens, `length` of them. Both are open and have no step under way. Where that cannot be done, the steps of the
        target compute it.

        Returns the number of tokens that count as copied, the same on all ranks: fewer than `length` where recurrent
        layers have no state after so many.
        """
        ...

    def drop(self, sequence: Sequence) -> None:
        """Drops what is computed of a sequence, which must have no step under way. Its steps compute it again."""
        ...

    def close(self, sequence: Sequence) -> None:
        """Frees what is held of a sequence, which must have no step under way."""
        ...

    def num_cached(self, sequence_id: str, tokens: list[int]) -> int:
        """How many of a sequence's first tokens have keys and values on this rank."""
        return 0

    def find_cache(self, sequence_id: str, tokens: list[int]) -> KVCache | None:
        """The cache of a sequence, with what was accepted of its last step and nothing else, for a second model that
        writes rows behind it. None where there is none to be shared. No step of the sequence may be under way.
        """
        return None

    def send_ahead(self, drafts: np.ndarray) -> None:
        """Sends what was drafted ahead of the batch that was started last along with its answers: int32 [I].

        All parts give as many integers; only those of parts that compute nothing are sent.
        """
        return None

    def take_ahead(self) -> np.ndarray | None:
        """What was sent along with the answers of the batch that was finished last: int32 [num_ahead, I]; None if
        nothing was.
        """
        return None

    def compare_caches(self, running: Items[tuple[str, list[int]]]) -> None:
        """Tells all ranks what each holds of sequences that another runner has left. No step may be under way.

        running: id and tokens of each sequence, the same on all ranks.
        """
        return None

    def use_times(self, times: StepTimes) -> None:
        """Decides by these step times from now on, for example whether one part alone computes a small tree."""
        return None

    def share_trees(self, is_shared: bool | None) -> None:
        """Has all parts share every tree, or one part compute it, while step times are measured; None ends that."""
        return None

    def time_copy(self, sequence: Sequence, num_tokens: int) -> float:
        """Seconds in which the second part gets the first tokens of a sequence from the first one; 0 if none is copied.

        The first one has computed them; the second one has computed none, and keeps none. All ranks call this together.
        """
        return 0.0
