"""What followed which tokens: an index of contexts of several lengths, asked for the longest that it knows.

Knows nothing of where its texts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

FOLLOWERS = 4
"""Tokens kept for one context, the newest first."""


class ContextIndex:
    """Followers of contexts of some lengths, in bounded memory: the oldest contexts are forgotten first."""

    def __init__(self, lengths: Sequence[int], capacity: int):
        """lengths: of contexts, ascending. capacity: contexts in all."""
        self.lengths = tuple(lengths)
        self.capacity = capacity
        self._longest_first = [(which, length) for which, length in enumerate(lengths)][::-1]
        self._followers: dict[tuple[int, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def add(self, context: tuple[int, ...], token: int) -> None:
        """Notes that the token followed the context, whose end alone matters."""
        known = self._followers
        for length in self.lengths:
            if length > len(context):
                break
            key = context[-length:]
            followers = known.get(key)
            if followers is None:
                known[key] = [token]
            elif followers[0] != token:
                if token in followers:
                    followers.remove(token)
                followers.insert(0, token)
                del followers[FOLLOWERS:]
        if len(known) > self.capacity:
            for key in list(islice(known, len(known) - self.capacity)):
                del known[key]

    def add_text(self, tokens: Sequence[int], start: int = 1) -> None:
        """Notes every token of a text from `start` on."""
        longest = self.longest
        for at in range(max(1, start), len(tokens)):
            self.add(tuple(tokens[max(0, at - longest) : at]), tokens[at])

    def lookup(self, context: tuple[int, ...]) -> tuple[int, list[int]] | None:
        """The number of the longest known length that the context ends in, and what followed, newest first."""
        num_tokens = len(context)
        for which, length in self._longest_first:
            if length <= num_tokens and (followers := self._followers.get(context[-length:])) is not None:
                return which, followers
        return None
