"""The interface of couplings. Knows nothing of trees' shapes, of ranks or of how drafts were made.

R rows of a tree, or of a rank's part of it; V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from lp.sampling.noise import gumbel, stream_seed, uniform_at
from lp.tree import Proposal

# The streams of noise: what a draft draws, and what decides on it, must be independent of each other and of the noise
# that draws a token when nothing was accepted.
DRAFT_STREAM, DECISION_STREAM = 1, 2


class Draws(NamedTuple):
    """The random numbers of rows: pure functions of the seed and of the position whose token is decided.

    positions: [R]. They are the same on every rank, for every part of a tree.
    """

    seed: int
    positions: np.ndarray

    def uniform(self, row: int, place: int) -> float:
        """A number between 0 and 1 for the decision about the child with this number."""
        return uniform_at(stream_seed(self.seed, DECISION_STREAM), int(self.positions[row]), place)

    def gumbel(self, row: int, weights_V: Tensor) -> Tensor:
        """[V] the noise that draws a token where no draft decides. weights_V: gives size and device."""
        return gumbel(self.seed, int(self.positions[row]), len(weights_V), weights_V.device)


class Given(NamedTuple):
    """What the targets of some rows are decided by.

    probabilities: [R, V] float32, the processed distribution of each row; in greedy decoding all of it is on one token.
    proposals: [R] what was drafted after each row, in the whole tree. usual: [R] int64, the targets that the rows would
    have without a coupling.
    """

    probabilities: Tensor
    proposals: Sequence[Proposal]
    usual: Tensor
    draws: Draws


class Coupling(Protocol):
    """Decides the targets of rows by what was drafted after them.

    It must decide each row by itself: ranks that share a tree have different rows of it, and the same row may be in
    several parts.
    """

    def targets(self, given: Given) -> Tensor:
        """[R] int64: the target of each row. A child that is accepted is the target itself."""
        ...
