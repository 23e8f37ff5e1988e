"""Contexts, and an index of the tokens that followed each of them.

A context is the end of a text, or of a path in a tree, as one integer. It has a digit for each of the last LONGEST
tokens, and the last token is the lowest digit. So a bit mask shortens a context and a shift adds a token, both without
making a tuple.

Knows nothing of where its texts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

# Number of tokens in a context.
LONGEST = 8
# Bits of a digit: more than the token ids of any vocabulary need.
BITS = 21
# Stands for the tokens before the first one of a text.
NO_TOKEN = -1
# A digit is its token plus this. No digit is 0, so contexts of different lengths differ.
OFFSET = 2
# Most tokens kept for one context, the newest first.
FOLLOWERS = 4

# What may follow a path: lists of candidates, best first. Each list comes with the kind of its first candidate; the
# next candidate has the next kind, and so on.
Proposals = list[tuple[int, Sequence[int]]]


def mask(length: int) -> int:
    """A bit mask: `context & mask(length)` is the context of the last `length` tokens."""
    return (1 << BITS * length) - 1


def context_of(tokens: Iterable[int]) -> int:
    """The context in which a text ends."""
    context = _EMPTY
    for token in tokens:
        context = context << BITS | token + OFFSET
    return context & _WHOLE


def extend(context: int, token: int) -> int:
    """The context after one more token."""
    return (context << BITS | token + OFFSET) & _WHOLE


def last_token(context: int) -> int:
    return (context & _LAST) - OFFSET


def pairs(before: Iterable[int], tokens: Iterable[int]) -> list[int]:
    """Contexts of two tokens: each token together with the one before it."""
    return [first + OFFSET << BITS | second + OFFSET for first, second in zip(before, tokens, strict=True)]


_LAST, _WHOLE = mask(1), mask(LONGEST)
_EMPTY = sum(NO_TOKEN + OFFSET << BITS * place for place in range(LONGEST))


class ContextIndex:
    """The tokens that followed contexts of several lengths. It is bounded: the oldest contexts are dropped first."""

    def __init__(self, lengths: Sequence[int], capacity: int):
        """lengths: lengths of the contexts that are kept, ascending. capacity: most contexts in all."""
        self.capacity = capacity
        self._masks = [mask(length) for length in lengths]
        self._longest_first = [(place * FOLLOWERS, bits) for place, bits in enumerate(self._masks)][::-1]
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
        """Adds every token of a text that continues a context."""
        for token in tokens:
            self.add(context, token)
            context = extend(context, token)

    def propose(self, path: int, position: int) -> Proposals:
        """Proposes the tokens that followed the longest known end of a path, the newest first; see DraftSource.

        A kind is a length of the match and a rank: the kinds of one length lie side by side. position: not needed here.
        """
        known = self._followers
        if path & self._masks[0] not in known:  # then no longer end of it is known either
            return []
        for kind, length_mask in self._longest_first:
            if (followers := known.get(path & length_mask)) is not None:
                return [(kind, followers)]
        return []
