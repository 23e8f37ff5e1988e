"""What sequences share, in the library's memory: an owner's n-grams and answers, the index and the corpus."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lp.drafting import answers, shared
from lp.drafting.answers import AnswerIndex
from lp.drafting.contexts import LONGEST
from lp.drafting.corpus.file import Corpus
from lp.drafting.corpus.rest import FIRST_REST, LONGEST_REST, TRIAL_STEPS
from lp.drafting.corpus.source import LENGTHS as MATCHES
from lp.drafting.corpus.source import MOST_PLACES
from lp.drafting.native.structures import CorpusArrays, Handle
from lp.drafting.suffix import LENGTHS
from lp.platform.library import Library, address, integers


class NativeFollowers:
    """A ContextIndex."""

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
    """NewestAnswers."""

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
    """SharedKnowledge."""

    ngrams: NativeFollowers
    answers: NativeAnswers


def make_native_shared(library: Library) -> NativeShared:
    """Nothing yet, for one owner's requests."""
    return NativeShared(NativeFollowers(library, LENGTHS, shared.CAPACITY), NativeAnswers(library, answers.CAPACITY))


def make_native_index(library: Library, index: AnswerIndex) -> Handle:
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


class NativeCorpus:
    """A Corpus as the library reads it, without a copy. It must not go before the drafters that were given its address.

    address: of its structure.
    """

    def __init__(self, corpus: Corpus):
        ids = corpus.ids
        self._corpus = corpus  # holds the memory that the structure points to
        self._arrays = CorpusArrays(
            *(one.ctypes.data for one in (ids, corpus.places, corpus.first)),
            len(ids), ids.itemsize, corpus.vocab_size, MOST_PLACES, len(MATCHES), (ctypes.c_int64 * LONGEST)(*MATCHES),
            TRIAL_STEPS, FIRST_REST, LONGEST_REST,
        )  # fmt: skip
        self.address = ctypes.addressof(self._arrays)
