"""The n-gram pool: candidate continuations of a token, the newest last, in bounded memory (arXiv 2402.02057,
section 3.2). Knows nothing of who found an n-gram beyond the name of its source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Continuation(NamedTuple):
    """What may follow a token: the N-1 later tokens of an n-gram, and who found it."""

    tokens: tuple[int, ...]
    source: str


class NGramPool:
    """N-grams by their first token. Holds at most `capacity`; the token not met for longest is forgotten first."""

    def __init__(self, ngram: int, capacity: int, per_token: int):
        """ngram: N. capacity: n-grams in all. per_token: n-grams that begin with one token."""
        self.ngram = ngram
        self.capacity = capacity
        self.per_token = per_token
        self.size = 0
        self._continuations: OrderedDict[int, OrderedDict[tuple[int, ...], str]] = OrderedDict()

    def __len__(self) -> int:
        return self.size

    def add(self, ngram: Sequence[int], source: str) -> None:
        """Adds an n-gram of N tokens, or makes it the newest if it is known."""
        assert len(ngram) == self.ngram
        first, rest = ngram[0], tuple(ngram[1:])
        known = self._continuations.setdefault(first, OrderedDict())
        self._continuations.move_to_end(first)
        if known.pop(rest, None) is None:
            self.size += 1
        known[rest] = source
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
        """Adds every n-gram of a text, in its order."""
        for start in range(len(tokens) - self.ngram + 1):
            self.add(tokens[start : start + self.ngram], source)

    def lookup(self, token: int, most: int) -> list[Continuation]:
        """At most `most` continuations of the token, the newest first."""
        known = self._continuations.get(token, {})
        newest_first = zip(range(most), reversed(known.items()), strict=False)
        return [Continuation(tokens, source) for _, (tokens, source) in newest_first]

    def items(self) -> Iterable[tuple[int, tuple[int, ...]]]:
        """All n-grams as (first token, the rest), for checksums."""
        return ((first, rest) for first, known in self._continuations.items() for rest in known)
