"""The Decoder of beam search: every wanted path is a branch of the tree, and what all open paths share is kept."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from lp.decoding.base import WholeTrees
from lp.decoding.beams.best_first import BestFirstSearch
from lp.decoding.beams.search import BeamSearch, Continuations, Path, Search, num_continuations
from lp.methods import Beam
from lp.tree import NOT_A_TOKEN, Accepted, Answers, CountDrafts, TokenTree, TreeBuilder, no_drafts


def shared_beginning(paths: Sequence[Path]) -> Path:
    """The tokens with which all paths begin."""
    first, last = min(paths), max(paths)  # all others lie between these two
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]


class BeamDecoder(WholeTrees):
    """Plans trees of paths. `commit` accepts tokens that all open paths begin with; they may be none.

    search: knows the paths and, in the end, the result. num_continuations: K, the likeliest tokens that it needs of a
    path, with their log-probabilities.
    """

    num_candidates = 0
    is_shared = True

    def __init__(self, settings: Beam, ends: Collection[int], max_new_tokens: int):
        """See BeamSearch."""
        kind = BestFirstSearch if settings.best_first else BeamSearch
        self.search: Search = kind(settings, ends, max_new_tokens)
        self.num_continuations = num_continuations(settings, len(ends))
        self._num_kept = 0  # tokens that all open paths begin with, and that the sequence has
        self._rows: list[int] = []  # of the last token of each wanted path

    @property
    def num_rows(self) -> int:
        """The most rows that the next tree can have."""
        return 1 + sum(len(path) - self._num_kept for path in self.search.wanted)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        rows: dict[tuple[int, ...], int] = {(): 0}
        self._rows = []
        for path in self.search.wanted:
            rest = path[self._num_kept :]
            for end in range(1, len(rest) + 1):
                if rest[:end] not in rows:
                    rows[rest[:end]] = builder.add(rest[end - 1], rows[rest[: end - 1]])
            self._rows.append(rows[rest])
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        assert answers.top_tokens is not None and answers.top_logprobs is not None
        if (answers.targets[self._rows] == NOT_A_TOKEN).any():
            return Accepted([NOT_A_TOKEN], [0], []), no_drafts
        self.search.expand([Continuations(answers.top_tokens[row], answers.top_logprobs[row]) for row in self._rows])
        shared = () if self.search.is_done else shared_beginning(self.search.open)
        more = list(shared[self._num_kept :])
        self._num_kept += len(more)
        return Accepted(more, [0] * len(more), []), no_drafts

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        raise AssertionError("a beam search never learns from tokens that it has not planned")

    def fingerprint(self) -> int:
        return zlib.crc32(repr((self._num_kept, self.search.open, self.search.num_calls)).encode()) >> 1
