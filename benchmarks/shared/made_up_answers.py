"""A table from which a made-up device answers at once, and a watch for the work of the host around it.

R rows of a tree, K candidates of each row
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from lp.tree import TokenTree

# The number of different tokens in a text, and of candidates in each answer.
NUM_TOKENS, CANDIDATES = 997, 8
# Positions after which the choices of the best followers come again.
PERIOD = 2**16


class FollowersTable:
    """Which tokens follow which, so that texts repeat themselves and some drafts are right.

    One of a token's first three followers is the best one, at random by the position: a rule with a short period would
    lead every text into a circle soon, and then all drafts would be right.
    """

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._followers = random.integers(NUM_TOKENS, size=(NUM_TOKENS, CANDIDATES))
        self._best = random.integers(3, size=PERIOD)

    def answer(self, tree: TokenTree, position: int) -> np.ndarray:
        """Packed answers, int32 [R, K]. position: of the tree's root."""
        first = self._best[(position + tree.depths) % PERIOD]
        ranks = (np.arange(CANDIDATES) + first[:, None]) % CANDIDATES
        return self._followers[tree.tokens[:, None] % NUM_TOKENS, ranks].astype(np.int32)


class Stopwatch:
    """Seconds by part, one entry for each step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Replaces a method of `owner` by one that adds its seconds to a part."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **others: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments, **others)
            self.seconds[part].append(time.perf_counter() - begin)
            return result

        setattr(owner, method, timed)
