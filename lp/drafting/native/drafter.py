"""The drafter whose work the library does.

R rows of a tree, K candidates of each row
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence

import numpy as np

from lp.drafting import recycled, suffix, window_ngrams
from lp.drafting.answer_index import IndexedAnswers
from lp.drafting.answers import CAPACITY
from lp.drafting.backoff import GAIN_OF_TOKEN, MOST_FUNDS, OVERDRAFT, SpeculationAccount
from lp.drafting.base import DraftSource, Proposals, SequenceStart
from lp.drafting.contexts import LONGEST
from lp.drafting.corpus.source import CorpusDrafts
from lp.drafting.drafter import DECAY, Estimates, WindowCells
from lp.drafting.growth import LEAST_PROBABILITY
from lp.drafting.native.knowledge import NativeCorpus, NativeShared
from lp.drafting.native.structures import Cost, Figures, Handle, InUse, Shared, Sizes
from lp.drafting.native.tree import PlannedMemory, PlannedTree
from lp.drafting.recycled import RecycledAnswers
from lp.drafting.shared import SharedDrafts
from lp.drafting.sources import Kinds
from lp.drafting.suffix import SuffixIndex, text_kinds
from lp.drafting.window_ngrams import WindowNGrams
from lp.platform.library import Library, address, integers
from lp.step_cost import StepCost
from lp.tree import Accepted, Answers, TokenTree

# The sources that the library has, in the order in which it asks them.
NATIVE_SOURCES: tuple[type[DraftSource], ...] = (
    SuffixIndex, SharedDrafts, WindowNGrams, RecycledAnswers, IndexedAnswers, CorpusDrafts,
)  # fmt: skip
# What the library has found in the answers: accepted tokens, their rows, the rows of each level, the tokens of the
# rows, and the number of rows of the root and the drafts of the next tree; 0 if none was planned.
Found = tuple[list[int], list[int], list[list[int]], list[int], int]
# Integers that `propose` has room for.
ROOM = 4096


class NativeDrafter:
    """See Drafter."""

    def __init__(
        self,
        library: Library,
        kinds: Kinds,
        estimates: Estimates,
        cost: StepCost,
        start: SequenceStart,
        shared: NativeShared | None,
        index: Handle | None,
        corpus: NativeCorpus | None,
    ):
        """start: without what is shared, the index and the corpus, which come as the library has them."""
        capacity = cost.most_rows + 1
        self._library = library
        self._planned = PlannedMemory(library, capacity)
        self._cells, self._odds = np.zeros(capacity, np.int64), array("d", bytes(8 * capacity))
        tables = cost.tables
        # What the library reads and writes, or points to, must not go before it does.
        self._kept = estimates, tables, shared, index, corpus
        memory = Shared(
            self._planned.rows_at,
            address(self._cells),
            *map(_address, (self._odds, estimates.probabilities, estimates.hits, estimates.trials)),
        )
        given = (
            memory,
            _in_use(kinds, start, shared, index, corpus),
            _sizes(start, capacity, kinds.num_own),
            Cost(cost.most_rows, cost.num_parts, tables.host_row, *map(_address, tables[1:])),
        )
        self._handle = Handle(library.drafts_new(*map(ctypes.addressof, given)), library.drafts_free)
        self._at = self._handle.address
        self._probabilities = estimates.probabilities
        self._figures = Figures.from_address(library.drafts_figures(self._at))
        self._planned.belongs_to(self._handle)
        self._num_candidates = start.settings.candidates
        self._tree: PlannedTree
        self.kinds, self.num_drafts = self._planned.kinds, 0
        # The root that the library has: the length of the sequence and its last token.
        self._length, self._last = 0, -1
        if start.prompt:
            self.move_to(start.prompt[:1])
            self.learn_text(start.prompt[1:])

    @property
    def expected(self) -> float:
        return self._figures.expected

    @property
    def best_speed(self) -> float:
        return self._figures.best_speed

    def move_to(self, tokens: Sequence[int]) -> None:
        if len(tokens) == self._length and tokens[-1] == self._last:
            return
        last = integers(tokens[-LONGEST:])
        self._library.drafts_move_to(self._at, len(tokens) - 1, address(last), len(last))
        self._length, self._last = len(tokens), tokens[-1]

    def watch(self) -> TokenTree:
        tree = self._next_tree()
        self._library.drafts_watch(self._at)
        self.num_drafts = tree.num_rows = 1
        return tree

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float, catch_up_s: float) -> TokenTree:
        num_cells, num_levels = self._give(window) if window else (0, 0)
        tree = self._next_tree()
        num_drafts = self._library.drafts_grow(self._at, max_depth, num_cells, num_levels, limit_s, catch_up_s)
        if window:
            window.place(num_drafts)
        self.num_drafts, tree.num_rows = num_drafts, num_drafts + num_cells
        return tree

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        self._next_tree()
        return self._odds[: self._library.drafts_offer(self._at, max_depth, most_rows, least)].tolist()

    def take(self, num_nodes: int, window: WindowCells | None) -> TokenTree:
        num_cells, num_levels = self._give(window) if window else (0, 0)
        self._library.drafts_take(self._at, num_nodes, num_cells, num_levels)
        tree, self.num_drafts = self._tree, 1 + num_nodes
        if window:
            window.place(1 + num_nodes)
        tree.num_rows = 1 + num_nodes + num_cells
        return tree

    def keep(self, rows: Sequence[int], window: WindowCells | None) -> TokenTree:
        kept = integers(rows)
        num_rows = self._library.drafts_keep(self._at, address(kept), len(kept))
        self._tree, self.num_drafts = self._planned.last_tree(num_rows), len(rows)
        if window:
            window.place(len(rows))
        return self._tree

    def _next_tree(self) -> PlannedTree:
        """The tree that the library is asked to plan next, whose number of rows is not known yet."""
        self._planned.make_room()
        self._tree = tree = self._planned.next_tree()
        self.kinds = self._planned.kinds
        return tree

    def _give(self, window: WindowCells) -> tuple[int, int]:
        """Hands the window's cells to the library. Returns the number of cells and of levels."""
        self._cells[: window.num_cells] = [token for level in window.cells for token in level]
        return window.num_cells, len(window.cells)

    def commit(self, answers: Answers) -> Accepted:
        has_candidates, given = self._numbers(answers)
        found = self._library.drafts_go_on(self._at, 0, 0, 0.0, math.inf, 0.0, has_candidates, given)
        return self._accept(found)

    def go_on(
        self, answers: Answers, room: int, wanted: int, account: SpeculationAccount, seconds: float
    ) -> tuple[Accepted, TokenTree | None]:
        has_candidates, given = self._numbers(answers)
        self._planned.make_room()
        found = self._library.drafts_go_on(
            self._at, room, wanted, account.funds, account.loss_s, seconds / account.plain_s, has_candidates, given
        )
        accepted, num_drafts = self._accept(found), found[-1]
        if not num_drafts:
            return accepted, None
        self._tree = self._planned.next_tree()
        self.kinds = self._planned.kinds
        self.num_drafts = self._tree.num_rows = num_drafts
        return accepted, self._tree

    def _accept(self, found: Found) -> Accepted:
        """Notes the accepted path that the library has found in a step's answers."""
        tokens, rows, levels, path, _ = found
        if path:
            self._tree.accepted_path = path, rows
        self._length, self._last = self._length + len(tokens), tokens[-1]
        return Accepted(tokens, rows, levels)

    def _numbers(self, answers: Answers) -> tuple[bool, np.ndarray]:
        """The answers as the library reads them, and whether they are candidates."""
        given, has_candidates = answers.candidates, True
        if given is None:
            given, has_candidates = answers.targets, False
        if given.itemsize != 4 or (has_candidates and given.strides[1] != 4):  # not as Answers.unpack has them
            given = np.ascontiguousarray(given, np.int32)
        num_rows = self._tree.num_rows
        assert given.shape == ((num_rows, self._num_candidates) if has_candidates else (num_rows,))
        return has_candidates, given

    def learn_text(self, tokens: Sequence[int]) -> None:
        numbers = integers(tokens)
        self._library.drafts_learn_text(self._at, address(numbers), len(numbers))
        self._length += len(tokens)
        self._last = tokens[-1] if len(tokens) else self._last

    def learn_ngrams(self, ngrams: Sequence[tuple[int, ...]]) -> None:
        if ngrams:
            numbers = integers(np.array(ngrams))
            self._library.drafts_learn_ngrams(self._at, address(numbers), *numbers.shape)

    def likeliest(self) -> tuple[float, int] | None:
        kind, token = ctypes.c_int64(), ctypes.c_int64()
        if not self._library.drafts_likeliest(self._at, ctypes.addressof(kind), ctypes.addressof(token)):
            return None
        return self._probabilities[kind.value], token.value

    def propose(self, path: Sequence[int], depth: int) -> Proposals:
        last, lists = integers(path[-LONGEST:]), np.empty(ROOM, np.int64)
        count = self._library.drafts_propose(self._at, address(last), len(last), depth, address(lists))
        numbers, proposals, at = lists[:count].tolist(), [], 0
        while at < count:
            kind, length = numbers[at : at + 2]
            proposals.append((kind, tuple(numbers[at + 2 : at + 2 + length])))
            at += 2 + length
        return proposals


def _address(numbers: array[float]) -> int:
    return numbers.buffer_info()[0]


def _in_use(
    kinds: Kinds, start: SequenceStart, shared: NativeShared | None, index: Handle | None, corpus: NativeCorpus | None
) -> InUse:
    settings, first = start.settings, kinds.first
    return InUse(
        shared and shared.ngrams.handle.address,
        shared and shared.answers.handle.address,
        index and index.address,
        corpus and corpus.address,
        settings.suffix_drafts, settings.window_drafts, settings.recycled_drafts, start.is_sampled,
        first[SuffixIndex.name], first[SharedDrafts.name], first[SharedDrafts.name] + len(text_kinds()),
        first[WindowNGrams.name], first[RecycledAnswers.name], first[IndexedAnswers.name], first[CorpusDrafts.name],
    )  # fmt: skip


def _sizes(start: SequenceStart, capacity: int, num_own_kinds: int) -> Sizes:
    text, window = suffix.LENGTHS, window_ngrams.LENGTHS[: start.settings.ngram - 1]
    lengths = ctypes.c_int64 * LONGEST
    return Sizes(
        capacity, start.settings.candidates, len(text), len(window), lengths(*text), lengths(*window),
        suffix.CAPACITY, window_ngrams.CAPACITY, CAPACITY, recycled.MOST_PLACES, num_own_kinds, DECAY,
        LEAST_PROBABILITY, GAIN_OF_TOKEN, OVERDRAFT, MOST_FUNDS,
    )  # fmt: skip
