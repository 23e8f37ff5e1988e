"""The n-gram pool: candidate continuations of a token, in bounded memory (arXiv 2402.02057, section 3.2).

Knows nothing of where an n-gram came from beyond the name of its source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Continuation(NamedTuple):
    """What may follow a token: the N-1 later tokens of an n-gram, and the name of its source."""

    tokens: tuple[int, ...]
    source: str


class NGramPool:
    """N-grams by their first token, at most `capacity` of them.

    When it is full, it drops the oldest n-gram of the first token that was added to least recently.
    """

    def __init__(self, ngram: int, capacity: int, per_token: int):
        """ngram: N. capacity: most n-grams in all. per_token: most n-grams that begin with the same token."""
        self.ngram = ngram
        self.capacity = capacity
        self.per_token = per_token
        self.size = 0
        self._continuations: OrderedDict[int, OrderedDict[tuple[int, ...], str]] = OrderedDict()

    def __len__(self) -> int:
        return self.size

    def add(self, ngram: Sequence[int], source: str) -> None:
        """Adds an n-gram of N tokens. One that is known becomes the newest, with `source` as its source."""
        assert len(ngram) == self.ngram
        first, later = ngram[0], tuple(ngram[1:])
        known = self._continuations.setdefault(first, OrderedDict())
        self._continuations.move_to_end(first)
        if known.pop(later, None) is None:
            self.size += 1
        known[later] = source
        if len(known) > self.per_token:
            known.popitem(last=False)
            self.size -= 1
        while self.size > self.capacity:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        first, known = next(iter(self._continuations.items()))
        known.popitem(last=False)
        self.size -= 1
        if not known:
            del self._continuations[first]

    def add_text(self, tokens: Sequence[int], source: str) -> None:
        """Adds every n-gram of a text, in the order of the text."""
        for start in range(len(tokens) - self.ngram + 1):
            self.add(tokens[start : start + self.ngram], source)

    def lookup(self, token: int, most: int) -> list[Continuation]:
        """At most `most` continuations of the token, the newest first."""
        known = self._continuations.get(token, {})
        newest_first = zip(range(most), reversed(known.items()), strict=False)
        return [Continuation(tokens, source) for _, (tokens, source) in newest_first]

    def items(self) -> Iterable[tuple[int, tuple[int, ...]]]:
        """All n-grams as (first token, later tokens), the oldest first; for checksums."""
        return ((first, later) for first, known in self._continuations.items() for later in known)
