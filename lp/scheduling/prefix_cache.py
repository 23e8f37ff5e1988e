"""Finished sequences whose keys and values are kept, so that a request that begins like one of them need not compute
its beginning again.

Which ones are kept follows from the order of events and the numbers of tokens alone. Knows nothing of where keys and
values lie.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from lp.kv_cache.cache import pages_of
from lp.request import Sequence as TokenSequence
from lp.scheduling.settings import PrefixReuse, SchedulerSettings

T = TypeVar("T")

# A shorter beginning is not worth the copy.
LEAST_TOKENS = 16


class Prefix(NamedTuple):
    """The beginning of a kept sequence. length: its number of tokens."""

    sequence: TokenSequence
    length: int


class FinishedSequence(NamedTuple):
    """A finished sequence whose keys and values are kept. owner, prompt_length: of its request."""

    id: str
    tokens: list[int]
    prompt_length: int
    owner: str | None


@dataclass
class _Kept:
    """A finished sequence, all of whose tokens but the last have been computed. tokens: these, int64."""

    sequence: TokenSequence
    owner: str | None
    tokens: np.ndarray

    @property
    def num_pages(self) -> int:
        return pages_of(len(self.tokens))


class PrefixCache:
    """The sequences that are kept; the one that was used least recently is first."""

    def __init__(self, settings: SchedulerSettings):
        self._reuse = settings.prefix_reuse
        self._most = settings.max_prefixes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, sequence: TokenSequence) -> bool:
        return sequence.id in self._kept

    def finished(self) -> list[FinishedSequence]:
        """All that are kept, in their order."""
        return [
            FinishedSequence(name, kept.sequence.tokens, kept.sequence.prompt_length, kept.owner)
            for name, kept in self._kept.items()
        ]

    def keeps(self, sequence: TokenSequence) -> bool:
        """Whether it is worth keeping a sequence that has ended."""
        return self._reuse is not PrefixReuse.off and len(sequence.tokens) > LEAST_TOKENS

    def add(self, sequence: TokenSequence, owner: str | None) -> None:
        """Keeps a sequence that has ended. owner: of its request."""
        self._kept[sequence.id] = _Kept(sequence, owner, np.array(sequence.tokens[:-1], np.int64))

    def find(self, tokens: Sequence[int], owner: str | None) -> Prefix | None:
        """The longest beginning that a kept sequence shares with a prompt, all but the last token of which counts."""
        wanted = np.array(tokens[:-1], np.int64)
        found = (Prefix(kept.sequence, _num_shared(kept.tokens, wanted)) for kept in self._find_allowed(owner))
        best = max(found, key=lambda prefix: prefix.length, default=None)
        if best is None or best.length < LEAST_TOKENS:
            return None
        self._kept.move_to_end(best.sequence.id)
        return best

    def find_running(
        self,
        tokens: Sequence[int],
        owner: str | None,
        running: Iterable[tuple[T, Sequence[int], str | None]],
        leader: T | None = None,
    ) -> tuple[T, int] | None:
        """The running request whose prompt begins most like this one, and the number of tokens that both begin with, if
        that are clearly more than a kept sequence has.

        running: each with its prompt and its owner. leader: has the same prompt for the same request, and is followed
        whatever the settings.
        """
        if leader is not None:
            return (leader, len(tokens) - 1) if len(tokens) > LEAST_TOKENS else None
        if self._reuse is PrefixReuse.off or len(tokens) <= LEAST_TOKENS:
            return None
        first = tokens[:LEAST_TOKENS]
        alike = [one for one in running if one[1][:LEAST_TOKENS] == first and self._allows(one[2], owner)]
        if not alike:
            return None
        wanted = np.array(tokens[:-1], np.int64)
        shared = [(one, _num_shared(np.array(prompt[:-1], np.int64), wanted)) for one, prompt, _ in alike]
        best, length = max(shared, key=lambda pair: pair[1])  # of several, the first
        kept = self.find(tokens, owner)
        return (best, length) if length >= LEAST_TOKENS + (kept.length if kept else 0) else None

    def _find_allowed(self, owner: str | None) -> Iterator[_Kept]:
        return (kept for kept in self._kept.values() if self._allows(kept.owner, owner))

    def _allows(self, owner: str | None, other: str | None) -> bool:
        return self._reuse is PrefixReuse.all or owner == other

    def take_surplus(self, num_free: int) -> list[TokenSequence]:
        """Takes out the sequences that are too many, or for which there are too few pages. num_free: pages."""
        left, surplus = num_free - sum(kept.num_pages for kept in self._kept.values()), list[TokenSequence]()
        for name, kept in list(self._kept.items()):
            if len(self._kept) <= self._most and left >= 0:
                break
            del self._kept[name]
            left += kept.num_pages
            surplus.append(kept.sequence)
        return surplus

    def take(self, sequence_id: str) -> TokenSequence | None:
        """Takes out a sequence; None if it is not kept."""
        kept = self._kept.pop(sequence_id, None)
        return kept and kept.sequence

    def take_all(self) -> list[TokenSequence]:
        """Takes out all sequences."""
        sequences = [kept.sequence for kept in self._kept.values()]
        self._kept.clear()
        return sequences


def _num_shared(one: np.ndarray, other: np.ndarray) -> int:
    """The number of tokens with which both begin."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def waiting_for_prefixes(
    shares_with: Mapping[T, tuple[T, int]], new: Iterable[T], admitted: Iterable[T]
) -> dict[T, tuple[T, int]]:
    """The new requests that wait until an earlier one has computed what both begin with, as choices of one prompt do.

    shares_with: for each of them, the earlier request and the number of tokens they share. admitted: requests that have
    memory; only one of them is waited for.
    """
    if not shares_with:
        return {}
    safe = set(admitted)
    found = {one: shares_with[one] for one in new if one in shares_with}
    return {one: earlier for one, earlier in found.items() if earlier[0] in safe}
