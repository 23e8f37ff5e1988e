"""How heads, columns and tokens are dealt out among ranks: numbers alone.

All ranks wait for one another twice in a layer, so the slowest rank of each part of a layer counts. Attention, the MLP
and the vocabulary are therefore each dealt out as evenly as they can be, and none makes up for another. What does not
divide leaves some ranks a little more: attention heads leave it to the first ranks, everything else to the last ones.
So memory is as balanced as it can be without making a step slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

# Columns come in multiples of one of these, the largest that keeps the largest share near the even one.
_UNITS = (64, 32, 16, 8, 4, 2, 1)
# By how much of the even share the largest share may be above it for the sake of a larger unit.
_TOLERANCE = 1 / 16


@dataclass(frozen=True)
class HeadShare:
    """The attention heads of one rank: consecutive query heads, and the key/value heads that they attend with.

    There are equally many query heads for each key/value head. Several ranks may hold the same key/value head.
    """

    query: range
    key_value: range

    @property
    def group(self) -> int:
        """The number of query heads for each key/value head."""
        return len(self.query) // len(self.key_value)


def deal(size: int, count: int) -> list[range]:
    """Cuts `size` columns into a range for each of `count` ranks, none of them empty; `count` must not be above `size`.

    They are equal if the columns divide. Otherwise they are multiples of 64, or of the largest smaller power of two
    that keeps the largest range within 1/16 of the even share. The last range may be cut short; the larger ones come
    last.
    """
    assert count <= size, f"{size} columns cannot be dealt out to {count} ranks"
    if size % count == 0:
        return _ranges([size // count] * count)
    for unit in _UNITS:
        shares = [unit * number for number in reversed(_shares(-(-size // unit), count))]
        shares[-1] -= sum(shares) - size
        if unit == 1 or (min(shares) > 0 and max(shares) <= (1 + _TOLERANCE) * size / count):
            break
    return _ranges(shares)


def deal_heads(num_query: int, num_key_value: int, count: int) -> list[HeadShare]:
    """Deals out attention heads, at least one query head to each of `count` ranks.

    Query heads come in groups that share a key/value head. Up to as many ranks as there are groups get whole groups,
    their numbers differing by one at most. More ranks than that are dealt out to the groups in the same way: the ranks
    of a group all hold its key/value head and share its query heads. `count` must not be above `num_query`, which must
    be a multiple of `num_key_value`.
    """
    assert count <= num_query and num_query % num_key_value == 0, (num_query, num_key_value, count)
    group = num_query // num_key_value
    if count <= num_key_value:
        return [
            HeadShare(range(held.start * group, held.stop * group), held)
            for held in _ranges(_shares(num_key_value, count))
        ]
    return [
        HeadShare(range(head * group + part.start, head * group + part.stop), range(head, head + 1))
        for head, num_ranks in enumerate(_shares(count, num_key_value))
        for part in _ranges(_shares(group, num_ranks))
    ]


def _shares(total: int, count: int) -> list[int]:
    """`count` numbers that add up to `total` and differ by one at most; the larger ones come first."""
    size, more = divmod(total, count)
    return [size + (index < more) for index in range(count)]


def _ranges(sizes: list[int]) -> list[range]:
    """Consecutive ranges of these sizes."""
    return [range(begin, end) for begin, end in pairwise([0, *accumulate(sizes)])]
