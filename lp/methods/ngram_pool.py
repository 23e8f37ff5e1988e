"""The n-gram pool: candidate continuations of a token, in bounded memory (arXiv 2402.02057, section 3.2), and a decoder
whose drafts come from it.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lp.decoder import Decoder, Described
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, TreeBuilder, greatest_depth, no_drafts, verify


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


def merge(builder: TreeBuilder, continuations: Iterable[Continuation], max_depth: int) -> dict[int, str]:
    """Adds continuations under the root as a trie, cut at `max_depth`. Returns the source of each row that it added."""
    sources: dict[int, str] = {}
    rows: dict[tuple[int, int], int] = {}
    for tokens, source in continuations:
        parent = 0
        for token in tokens[:max_depth]:
            if (parent, token) not in rows:
                rows[parent, token] = builder.add(token, parent)
                sources[rows[parent, token]] = source
            parent = rows[parent, token]
    return sources


class PoolFeed:
    """An n-gram pool and the texts that feed it."""

    def __init__(self, pool: NGramPool, prompt: Sequence[int], prompt_drafts: bool, generated_drafts: bool):
        """prompt_drafts, generated_drafts: whether the n-grams of the prompt and of the output feed the pool."""
        self.pool, self._generated = pool, generated_drafts
        self._start = 0 if prompt_drafts else len(prompt)  # of the texts whose n-grams may feed the pool
        if prompt_drafts:
            pool.add_text(prompt, "prompt")

    def learn(self, tokens: Sequence[int], accepted: list[int]) -> None:
        """Adds the n-grams of the text that end in an accepted token."""
        if self._generated:
            before = max(self._start, len(tokens) - (self.pool.ngram - 1))
            self.pool.add_text([*tokens[before:], *accepted], "generated")


class PoolDecoder(Decoder):
    """A Decoder with drafts from a pool."""

    def __init__(self, feed: PoolFeed, guesses: int):
        """guesses: G, n-grams verified a step."""
        self.feed, self.guesses = feed, guesses
        # Of each draft of the tree, by its row, which follows the root.
        self.sources: dict[int, str] = {}

    @property
    def num_drafts(self) -> int:
        return len(self.sources)

    def add_drafts(self, builder: TreeBuilder, token: int, room: int, wanted: int) -> None:
        """Adds drafts that may follow the root's token. The others: see Decoder.plan."""
        self.sources = merge(builder, self.feed.pool.lookup(token, self.guesses), greatest_depth(room, wanted))

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        self.add_drafts(builder, tokens[-1], room, wanted)
        self.tree = builder.build()
        return self.tree

    def keep(self, rows: Sequence[int]) -> TokenTree:
        self.tree = self.tree.take([*rows, *range(1 + self.num_drafts, len(self.tree))])
        self.sources = {new: self.sources[old] for new, old in enumerate(rows) if new}
        return self.tree

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self.feed.learn(tokens, list(more))

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets, 1 + self.num_drafts)
        self.learn(tokens, answers, accepted)
        if not self.sources:
            return accepted, no_drafts
        sources = self.sources  # those of the next step replace them
        return accepted, lambda: Drafted(Counter(sources.values()), [sources[row] for row in accepted.rows[1:]])

    def learn(self, tokens: Sequence[int], answers: Answers, accepted: Accepted) -> None:
        """Learns from a step."""
        self.feed.learn(tokens, accepted.tokens)

    def describe(self) -> Described:
        return Described(["root", *self.sources.values()], pool=len(self.feed.pool))

    def fingerprint(self) -> int:
        return zlib.crc32(repr(list(self.feed.pool.items())).encode()) >> 1
