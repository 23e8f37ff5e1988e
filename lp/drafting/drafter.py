"""A drafter makes the trees of one sequence, and learns from their answers. The library of compiled C++ does the work:
lp/platform/csrc/drafts.h. Here are the Python objects that hold its memory, and the structures that it is given.

R rows of a tree, K candidates of each row
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lp.drafting.account import (
    CORPUS_LENGTHS,
    DECAY,
    GAIN_OF_TOKEN,
    LEAST_PROBABILITY,
    MOST_FUNDS,
    OVERDRAFT,
    TEXT_LENGTHS,
    WINDOW_LENGTHS,
    DraftProfile,
    SpeculationAccount,
)
from lp.drafting.answer_index import CAPACITY as MOST_ANSWERS
from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import FIRST_REST, LONGEST_REST, MOST_PLACES, TRIAL_STEPS, Corpus
from lp.drafting.ngrams import FOLLOWERS, LONGEST, Proposals
from lp.drafting.planned_tree import Handle, PlannedMemory, PlannedTree
from lp.drafting.settings import DraftSettings
from lp.platform.library import Library, address, integers
from lp.tree import Accepted, Answers, TokenTree, TreeBuilder

# Most contexts that are kept of a text, of the window's n-grams, and of the texts of one owner.
TEXT_CAPACITY, WINDOW_CAPACITY, SHARED_CAPACITY = 1 << 20, 1 << 20, 1 << 18
# If more answers than this are kept by position, those at positions that the text has passed are dropped.
MOST_ANSWERED_PLACES = 4096
# Integers that `propose` has room for.
ROOM = 4096
# What the library has found in the answers: accepted tokens, their rows, the rows of each level, the tokens of the
# rows, and the number of rows of the root and the drafts of the next tree; 0 if none was planned.
Found = tuple[list[int], list[int], list[list[int]], list[int], int]


class WindowCells(Protocol):
    """The lookahead window, as far as a tree needs it.

    cells: their tokens, level by level, in columns.
    """

    cells: list[list[int]]

    @property
    def num_cells(self) -> int: ...

    def plan(self, builder: TreeBuilder) -> None:
        """Adds all cells to a tree."""
        ...

    def place(self, first_row: int) -> None:
        """Notes that the cells were added to a tree from a row on."""
        ...


class Drafter(Protocol):
    """Makes trees under the end of a sequence, the root.

    kinds: of each row of the tree planned last that is the root or a draft, the kind of its candidate; that of the
    root means nothing, nor do those behind the drafts. They hold until the next tree but one is planned. num_drafts: of
    these rows. expected: number of tokens that a step with these drafts is expected to yield.
    """

    @property
    def kinds(self) -> Sequence[int]: ...

    @property
    def num_drafts(self) -> int: ...

    @property
    def expected(self) -> float: ...

    def move_to(self, tokens: Sequence[int]) -> None:
        """Makes the end of the sequence the root. tokens: the whole sequence."""
        ...

    def watch(self) -> TokenTree:
        """Plans the root alone, and keeps what the sources propose to follow it."""
        ...

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float) -> TokenTree:
        """Plans a tree of drafts and the window.

        max_depth: greatest depth of a draft. limit_s: most seconds that the step may take.
        """
        ...

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        """Grows a tree of which `take` keeps as many nodes as pay. Returns the probability of each node, in the order
        in which they are kept.

        most_rows: of the root and the nodes. least: the least probability of a node.
        """
        ...

    def take(self, num_nodes: int, window: WindowCells | None) -> TokenTree:
        """Plans the tree of the first nodes that were offered, and the window."""
        ...

    def keep(self, rows: Sequence[int], window: WindowCells | None) -> TokenTree:
        """Drops drafts from the tree planned last. Returns it without them.

        rows: the root and the drafts that stay, ascending, with all ancestors of each. window: that of the tree.
        """
        ...

    def commit(self, answers: Answers) -> Accepted:
        """Verifies the tree planned last; learns from its accepted path, and from the candidates of all its rows. Then
        the end of what was accepted is the root.
        """
        ...

    def go_on(
        self, answers: Answers, room: int, wanted: int, account: SpeculationAccount, seconds: float
    ) -> tuple[Accepted, TokenTree | None]:
        """`commit`, then plans the next tree with `grow`, without a window, where the account is going to allow that.

        room, wanted: those of the tree planned last (see Decoder.plan). seconds: modelled ones of its step, which has
        not been noted. Returns no tree if the account does not allow drafts, or no more tokens are wanted.
        """
        ...

    def learn_text(self, tokens: Sequence[int]) -> None:
        """Lets the sources learn what followed the root in steps that were not planned here.

        The end of that is the root then.
        """
        ...

    def learn_ngrams(self, ngrams: Sequence[tuple[int, ...]]) -> None:
        """Lets the sources learn n-grams that the window has yielded."""
        ...

    def likeliest(self) -> tuple[float, int] | None:
        """The probability and the token of the likeliest proposal for what follows the root; None if there is none."""
        ...

    def propose(self, path: Sequence[int], depth: int) -> Proposals:
        """Proposals of all sources for what follows a path that ends `depth` tokens below the root."""
        ...


class Drafters(Protocol):
    """Makes the drafters of an engine, and what requests of one owner share.

    has_window: whether they use a lookahead window.
    """

    has_window: bool

    def new_shared(self) -> Any:
        """What the requests of one owner share, which is nothing yet; None if they cannot share anything."""
        ...

    def new_drafter(
        self, profile: DraftProfile, settings: DraftSettings, prompt: Sequence[int], is_sampled: bool, shared: Any
    ) -> Drafter:
        """A drafter for a new sequence. shared: None if it shares nothing."""
        ...


class NativeDrafter:
    """See Drafter."""

    def __init__(
        self,
        library: Library,
        profile: DraftProfile,
        settings: DraftSettings,
        prompt: Sequence[int],
        is_sampled: bool,
        shared: NativeShared | None,
        index: Handle | None,
        corpus: NativeCorpus | None,
    ):
        kinds, estimates, cost = profile.kinds, profile.estimates, profile.cost
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
            _in_use(kinds.first, settings, is_sampled, shared, index, corpus),
            _sizes(settings, capacity, kinds.num_own),
            Cost(cost.most_rows, cost.num_parts, *map(_address, tables)),
        )
        self._handle = Handle(library.drafts_new(*map(ctypes.addressof, given)), library.drafts_free)
        self._at = self._handle.address
        self._probabilities = estimates.probabilities
        self._figures = Figures.from_address(library.drafts_figures(self._at))
        self._planned.belongs_to(self._handle)
        self._num_candidates = settings.candidates
        self._tree: PlannedTree
        self.kinds, self.num_drafts = self._planned.kinds, 0
        # The root that the library has: the length of the sequence and its last token.
        self._length, self._last = 0, -1
        if prompt:
            self.move_to(prompt[:1])
            self.learn_text(prompt[1:])

    @property
    def expected(self) -> float:
        return self._figures.expected

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

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float) -> TokenTree:
        num_cells, num_levels = self._give(window) if window else (0, 0)
        tree = self._next_tree()
        num_drafts = self._library.drafts_grow(self._at, max_depth, num_cells, num_levels, limit_s)
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
    first: dict[str, int],
    settings: DraftSettings,
    is_sampled: bool,
    shared: NativeShared | None,
    index: Handle | None,
    corpus: NativeCorpus | None,
) -> InUse:
    first_shared_answer = first["shared"] + len(TEXT_LENGTHS) * FOLLOWERS
    return InUse(
        shared and shared.ngrams.handle.address,
        shared and shared.answers.handle.address,
        index and index.address,
        corpus and corpus.address,
        settings.suffix_drafts, settings.window_drafts, settings.recycled_drafts, is_sampled,
        first["suffix"], first["shared"], first_shared_answer, first["window"], first["recycled"], first["index"],
        first["corpus"],
    )  # fmt: skip


def _sizes(settings: DraftSettings, capacity: int, num_own_kinds: int) -> Sizes:
    window, lengths = WINDOW_LENGTHS[: settings.ngram - 1], c_int64 * LONGEST
    return Sizes(
        capacity, settings.candidates, len(TEXT_LENGTHS), len(window), lengths(*TEXT_LENGTHS), lengths(*window),
        TEXT_CAPACITY, WINDOW_CAPACITY, MOST_ANSWERS, MOST_ANSWERED_PLACES, num_own_kinds, DECAY,
        LEAST_PROBABILITY, GAIN_OF_TOKEN, OVERDRAFT, MOST_FUNDS,
    )  # fmt: skip


class NativeFollowers:
    """What followed the same last tokens in the texts of one owner."""

    def __init__(self, library: Library, lengths: Sequence[int], capacity: int):
        self._library = library
        numbers = integers(lengths)
        self.handle = Handle(library.followers_new(address(numbers), len(numbers), capacity), library.followers_free)

    def __len__(self) -> int:
        return self._library.followers_size(self.handle.address)

    def add_text(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Adds every token of a text. before: the text before it."""
        known, added = integers(before), integers(tokens)
        self._library.followers_add_text(self.handle.address, address(known), len(known), address(added), len(added))


class NativeAnswers:
    """What the model answered in the requests of one owner."""

    def __init__(self, library: Library, capacity: int):
        self._library = library
        self.handle = Handle(library.answers_new(capacity), library.answers_free)

    def __len__(self) -> int:
        return sum(self._library.answers_size(self.handle.address, num_tokens) for num_tokens in (1, 2))

    @property
    def pairs(self) -> dict[int, tuple[int, ...]]:
        """A copy of the answers after two tokens."""
        return self._copy(2)

    @property
    def tokens(self) -> dict[int, tuple[int, ...]]:
        """A copy of the answers after one token."""
        return self._copy(1)

    def _copy(self, num_tokens: int) -> dict[int, tuple[int, ...]]:
        """Answers by contexts of one or two tokens, the oldest first."""
        at = self.handle.address
        size = self._library.answers_size(at, num_tokens)
        keys = np.empty(size, np.int64)
        answers = np.empty((size, self._library.answers_width(at, num_tokens)), np.int32)
        self._library.answers_copy(at, num_tokens, address(keys), address(answers))
        return {key: tuple(row[row >= 0].tolist()) for key, row in zip(keys.tolist(), answers, strict=True)}


@dataclass(frozen=True)
class NativeShared:
    """What requests of one owner share: the n-grams of their texts, and the model's answers to them."""

    ngrams: NativeFollowers
    answers: NativeAnswers


class NativeCorpus:
    """A Corpus as the library reads it, without a copy. It must not go before the drafters that were given its address.

    address: of its structure.
    """

    def __init__(self, corpus: Corpus):
        ids = corpus.ids
        self._corpus = corpus  # holds the memory that the structure points to
        self._arrays = CorpusArrays(
            *(one.ctypes.data for one in (ids, corpus.places, corpus.first)),
            len(ids), ids.itemsize, corpus.vocab_size, MOST_PLACES,
            len(CORPUS_LENGTHS), (c_int64 * LONGEST)(*CORPUS_LENGTHS), TRIAL_STEPS, FIRST_REST, LONGEST_REST,
        )  # fmt: skip
        self.address = ctypes.addressof(self._arrays)


def _native_index(library: Library, index: AnswerIndex) -> Handle:
    """A copy of an index."""
    pairs, tokens = integers(index.pairs), integers(index.tokens)
    pair_answers, token_answers = (
        np.ascontiguousarray(kept, np.int32) for kept in (index.pair_answers, index.token_answers)
    )
    made = library.fixed_new(
        address(pairs), address(pair_answers), *pair_answers.shape,
        address(tokens), address(token_answers), *token_answers.shape,
    )  # fmt: skip
    return Handle(made, library.fixed_free)


class NativeDrafters:
    """See Drafters."""

    has_window = True

    def __init__(self, library: Library, index: AnswerIndex | None, corpus: Corpus | None):
        self._library = library
        self._index = index and _native_index(library, index)
        self._corpus = corpus and NativeCorpus(corpus)

    def new_shared(self) -> NativeShared:
        ngrams = NativeFollowers(self._library, TEXT_LENGTHS, SHARED_CAPACITY)
        return NativeShared(ngrams, NativeAnswers(self._library, MOST_ANSWERS))

    def new_drafter(
        self,
        profile: DraftProfile,
        settings: DraftSettings,
        prompt: Sequence[int],
        is_sampled: bool,
        shared: NativeShared | None,
    ) -> NativeDrafter:
        index = self._index if settings.index_drafts else None
        corpus = self._corpus if settings.corpus_drafts else None
        return NativeDrafter(self._library, profile, settings, prompt, is_sampled, shared, index, corpus)


# The structures that the library is given: given.h, growth.h and corpus.h in lp/platform/csrc.


class Shared(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            "rows", "cells", "odds", "probabilities", "hits", "trials",
        )
    ]  # fmt: skip


class InUse(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("shared_ngrams", "shared_answers", "index", "corpus")),
        *((name, c_int64) for name in ("has_suffix", "has_window", "has_recycled", "by_place")),
        *((f"first_{name}", c_int64) for name in ("suffix", "shared", "shared_answer", "window", "recycled")),
        *((f"first_{name}", c_int64) for name in ("index", "corpus")),
    ]


class CorpusArrays(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("ids", "places", "first")),
        *((name, c_int64) for name in ("num_ids", "id_bytes", "vocab_size", "most_places", "num_lengths")),
        ("lengths", c_int64 * LONGEST),
        *((name, c_int64) for name in ("trial_steps", "first_rest", "longest_rest")),
    ]


class Sizes(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("capacity", "num_candidates", "num_text_lengths", "num_window_lengths")),
        *((name, c_int64 * LONGEST) for name in ("text_lengths", "window_lengths")),
        *((f"most_{name}", c_int64) for name in ("text_contexts", "window_contexts", "answers", "places")),
        ("num_own_kinds", c_int64),
        *((name, c_double) for name in ("decay", "least_probability")),
        *((name, c_double) for name in ("gain_of_token", "overdraft", "most_funds")),
    ]


class Cost(ctypes.Structure):
    _fields_ = [
        ("most_rows", c_int64),
        ("num_parts", c_int64),
        *((name, c_void_p) for name in ("host_row", "shared", "shared_slopes", "alone", "alone_slopes")),
    ]


class Figures(ctypes.Structure):
    _fields_ = [("expected", c_double)]
