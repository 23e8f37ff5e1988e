"""The drafter whose work the library does.

R rows of a tree, K candidates of each row
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np

from lp.drafting import recycled, suffix, window_ngrams
from lp.drafting.answer_index import IndexedAnswers
from lp.drafting.answers import CAPACITY
from lp.drafting.base import DraftSource, Proposals, SequenceStart
from lp.drafting.contexts import LONGEST
from lp.drafting.drafter import DECAY, Estimates, WindowCells
from lp.drafting.growth import LEAST_PROBABILITY
from lp.drafting.native.knowledge import NativeShared
from lp.drafting.native.structures import Cost, Figures, Handle, InUse, Shared, Sizes
from lp.drafting.native.tree import PlannedMemory, PlannedTree
from lp.drafting.recycled import RecycledAnswers
from lp.drafting.shared import SharedDrafts
from lp.drafting.sources import Kinds
from lp.drafting.suffix import SuffixIndex, text_kinds
from lp.drafting.window_ngrams import WindowNGrams
from lp.host.trees import address, as_levels, integers
from lp.step_cost import StepCost
from lp.tree import TokenTree
from lp.verification import Accepted, Answers

# The sources that the library has, in the order in which it asks them.
NATIVE_SOURCES: tuple[type[DraftSource], ...] = (
    SuffixIndex, SharedDrafts, WindowNGrams, RecycledAnswers, IndexedAnswers,
)  # fmt: skip
# Integers that `propose` has room for.
ROOM = 4096


class NativeDrafter:
    """See Drafter."""

    def __init__(
        self,
        library: ctypes.PyDLL,
        kinds: Kinds,
        estimates: Estimates,
        cost: StepCost,
        start: SequenceStart,
        shared: NativeShared | None,
        index: Handle | None,
    ):
        """start: without what is shared and without the index, which come as the library has them."""
        settings = start.settings
        capacity = cost.most_rows + 1
        self._library = library
        self._rows = np.zeros((4, capacity), np.int64)
        self._targets, self._cells = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self._candidates = np.zeros((capacity, settings.candidates), np.int32)
        self._accepted, self._levels = np.zeros((2, capacity), np.int64), np.zeros((2, capacity), np.int64)
        self._odds = np.zeros(capacity)
        tables = cost.tables
        # What the library reads and writes, or points to, must not go before it does.
        self._kept = estimates, tables, shared, index
        memory = Shared(
            *map(address, (self._rows, self._targets, self._candidates, self._accepted, self._levels, self._cells)),
            address(self._odds),
            *map(_address, (estimates.probabilities, estimates.hits, estimates.trials)),
        )
        self._handle = Handle(
            library.drafts_new(
                ctypes.byref(memory),
                ctypes.byref(_in_use(kinds, start, shared, index)),
                ctypes.byref(_sizes(start, capacity)),
                ctypes.byref(Cost(cost.most_rows, cost.num_parts, tables.host_row, *map(_address, tables[1:]))),
            ),
            library.drafts_free,
        )
        self._at = self._handle.address
        self._probabilities = estimates.probabilities
        self._figures = Figures.from_address(library.drafts_figures(self._at))
        self._planned_memory = PlannedMemory(library, self._handle, self._rows)
        self._tree: TokenTree
        self.kinds: Sequence[int] = ()
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
        self._library.drafts_watch(self._at)
        return self._planned(1, 1)

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float, catch_up_s: float) -> TokenTree:
        num_cells, num_levels = self._give(window)
        num_drafts = self._library.drafts_grow(self._at, max_depth, num_cells, num_levels, limit_s, catch_up_s)
        return self._beside(window, num_drafts)

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        return self._odds[: self._library.drafts_offer(self._at, max_depth, most_rows, least)].tolist()

    def take(self, num_nodes: int, window: WindowCells | None) -> TokenTree:
        self._library.drafts_take(self._at, num_nodes, *self._give(window))
        return self._beside(window, 1 + num_nodes)

    def _give(self, window: WindowCells | None) -> tuple[int, int]:
        """Hands the window's cells to the library. Returns the number of cells and of levels."""
        if not window:
            return 0, 0
        self._cells[: window.num_cells] = [token for level in window.cells for token in level]
        return window.num_cells, len(window.cells)

    def _beside(self, window: WindowCells | None, num_drafts: int) -> TokenTree:
        """The tree planned last, of root and drafts and a window."""
        if not window:
            return self._planned(num_drafts, num_drafts)
        window.place(num_drafts)
        return self._planned(num_drafts, num_drafts + window.num_cells)

    def _planned(self, num_drafts: int, num_rows: int) -> TokenTree:
        """A copy of the tree planned last, as the library's memory is written anew by the next plan."""
        tokens, parents, depths, kinds = self._rows[:, :num_rows].copy()
        self.kinds = kinds[:num_drafts]
        self._planned_memory.serial += 1
        self._tree = PlannedTree(tokens, parents, depths, self._planned_memory)
        return self._tree

    def commit(self, answers: Answers) -> Accepted:
        num_rows, candidates = len(answers.targets), answers.candidates
        if candidates is None:
            self._targets[:num_rows] = answers.targets
        else:
            self._candidates[:num_rows] = candidates
        count = self._library.drafts_commit(self._at, candidates is not None)
        tokens, rows = self._accepted[:, : abs(count)].tolist()
        if count > 0:  # otherwise a row may not be the child of the one before it
            self._tree.note_path([self._last, *tokens], rows)
        self._length, self._last = self._length + len(tokens), tokens[-1]
        levels = [[row] for row in rows[1:]] if count > 0 else as_levels(self._levels, -count - 1)
        return Accepted(tokens, rows, levels)

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
        if not self._library.drafts_likeliest(self._at, ctypes.byref(kind), ctypes.byref(token)):
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


def _in_use(kinds: Kinds, start: SequenceStart, shared: NativeShared | None, index: Handle | None) -> InUse:
    settings, first = start.settings, kinds.first
    return InUse(
        shared and shared.ngrams.handle.address,
        shared and shared.answers.handle.address,
        index and index.address,
        settings.suffix_drafts, settings.window_drafts, settings.recycled_drafts, start.is_sampled,
        first[SuffixIndex.name], first[SharedDrafts.name], first[SharedDrafts.name] + len(text_kinds()),
        first[WindowNGrams.name], first[RecycledAnswers.name], first[IndexedAnswers.name],
    )  # fmt: skip


def _sizes(start: SequenceStart, capacity: int) -> Sizes:
    text, window = suffix.LENGTHS, window_ngrams.LENGTHS[: start.settings.ngram - 1]
    lengths = ctypes.c_int64 * LONGEST
    return Sizes(
        capacity, start.settings.candidates, len(text), len(window), lengths(*text), lengths(*window),
        suffix.CAPACITY, window_ngrams.CAPACITY, CAPACITY, recycled.MOST_PLACES, DECAY, LEAST_PROBABILITY,
    )  # fmt: skip
