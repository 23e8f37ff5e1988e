"""Contexts, and an index of what followed which: asked for the longest context that it knows.

A context is the end of a text, or of a path in a tree, as one integer: a digit for each of its last LONGEST tokens, the
last token's lowest. So a shorter context is a remainder and one more token a shift, and neither makes a tuple.

Knows nothing of where its texts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

LONGEST = 8
"""Tokens of a context."""
BITS = 21
"""Of a digit, more than any vocabulary needs."""
NO_TOKEN = -1
"""In the place of tokens before the first."""
OFFSET = 2
"""Of a digit from its token. No digit is 0, so contexts of several lengths differ."""
FOLLOWERS = 4
"""Tokens kept for one context, the newest first."""


def mask(length: int) -> int:
    """`context & mask(length)` is the context of so many tokens."""
    return (1 << BITS * length) - 1


def context_of(tokens: Iterable[int]) -> int:
    """The end of a text."""
    context = _EMPTY
    for token in tokens:
        context = context << BITS | token + OFFSET
    return context & _WHOLE


def extend(context: int, token: int) -> int:
    """The context one token later."""
    return (context << BITS | token + OFFSET) & _WHOLE


def last_token(context: int) -> int:
    return (context & _LAST) - OFFSET


def pairs(before: Iterable[int], tokens: Iterable[int]) -> list[int]:
    """Contexts of two tokens: of each token and the one before it."""
    return [first + OFFSET << BITS | second + OFFSET for first, second in zip(before, tokens, strict=True)]


_LAST, _WHOLE = mask(1), mask(LONGEST)
_EMPTY = sum(NO_TOKEN + OFFSET << BITS * place for place in range(LONGEST))


class ContextIndex:
    """Followers of contexts of some lengths, in bounded memory: the oldest contexts are forgotten first."""

    def __init__(self, lengths: Sequence[int], capacity: int):
        """lengths: of contexts, ascending. capacity: contexts in all."""
        self.capacity = capacity
        self._masks = [mask(length) for length in lengths]
        self._longest_first = list(enumerate(self._masks))[::-1]
        self._followers: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, context: int, token: int) -> None:
        """Notes that the token followed the context."""
        known = self._followers
        for length_mask in self._masks:
            key = context & length_mask
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

    def add_text(self, context: int, tokens: Iterable[int]) -> None:
        """Notes every token of a text that goes on from a context."""
        for token in tokens:
            self.add(context, token)
            context = extend(context, token)

    def lookup(self, context: int) -> tuple[int, list[int]] | None:
        """The number of the longest known length that the context ends in, and what followed, newest first."""
        known = self._followers
        if context & self._masks[0] not in known:  # what is not known by its end is not known by more of it
            return None
        for which, length_mask in self._longest_first:
            if (followers := known.get(context & length_mask)) is not None:
                return which, followers
        return None
