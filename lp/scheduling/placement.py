"""Places sequences on replicas, so that those on each replica have room there together: each lies whole on one.

    needs: the pages of each sequence, in the order of arrival
    owners: for each, the replica that holds most of it already; None if none holds anything

Pure functions of these numbers, so all ranks place alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Owners = Sequence[int | None]


def place_first(needs: Sequence[int], owners: Owners, num_pages: int, num_replicas: int) -> list[int]:
    """The replicas of the first sequences: of as many as can be placed together, and always of the first.

    num_pages: of each replica. A sequence stays with its owner, unless more fit if some move.
    """
    for number in range(len(needs), 1, -1):
        homes = place(needs[:number], owners[:number], num_pages, num_replicas)
        if homes is not None:
            return homes
    return [owners[0] or 0] if needs else []


def place(needs: Sequence[int], owners: Owners, num_pages: int, num_replicas: int) -> list[int] | None:
    """The replica of each sequence; None if no placement was found.

    New sequences go to the replica with the fewest. If that leaves one without room, sequences move: first as few and
    as small ones as will do, then any.
    """
    largest_first = sorted(range(len(needs)), key=needs.__getitem__, reverse=True)
    owned_first = sorted(largest_first, key=lambda number: owners[number] is None)
    bins = num_pages, num_replicas
    homes = _deal(owned_first, needs, owners, *bins, evenly=True)
    if homes is not None:
        return homes
    homes = _deal(largest_first, needs, owners, *bins, evenly=False)
    if homes is None:
        homes = _deal(largest_first, needs, [None] * len(needs), *bins, evenly=False)
    return homes and _renamed(homes, needs, owners, num_replicas)


def _deal(
    order: Iterable[int], needs: Sequence[int], owners: Owners, num_pages: int, num_replicas: int, evenly: bool
) -> list[int] | None:
    """Places each sequence with its owner, or else, evenly, with the replica that has the fewest, or where it leaves
    the least room. None if one fits nowhere.
    """
    free, counts, homes = [num_pages] * num_replicas, [0] * num_replicas, [0] * len(needs)
    for number in order:
        need, home = needs[number], owners[number]
        if home is None or need > free[home]:
            fitting = [replica for replica, left in enumerate(free) if need <= left]
            if not fitting:
                return None
            home = _fewest(fitting, counts, free) if evenly else min(fitting, key=free.__getitem__)
        free[home] -= need
        counts[home] += 1
        homes[number] = home
    return homes


def _fewest(replicas: Iterable[int], counts: Sequence[int], free: Sequence[int]) -> int:
    """The replica with the fewest sequences; of several, the one with the most room."""
    return min(replicas, key=lambda replica: (counts[replica], -free[replica]))


def _renamed(homes: Sequence[int], needs: Sequence[int], owners: Owners, num_replicas: int) -> list[int]:
    """The same groups of sequences on other replicas, so that most pages lie where they are already."""
    owned: Counter[tuple[int, int]] = Counter()
    for home, need, owner in zip(homes, needs, owners, strict=True):
        if owner is not None:
            owned[home, owner] += need
    names: dict[int, int] = {}
    for (home, owner), _ in sorted(owned.items(), key=lambda entry: (-entry[1], entry[0])):
        if home not in names and owner not in names.values():
            names[home] = owner
    left = iter([replica for replica in range(num_replicas) if replica not in names.values()])
    names.update((home, next(left)) for home in range(num_replicas) if home not in names)
    return [names[home] for home in homes]


def place_pinned(needs: Sequence[int], owners: Owners, num_pages: int, num_replicas: int) -> list[int | None]:
    """The replica of each sequence if none may move; None for those that wait.

    A sequence that has become too large for its replica makes the last one there wait. No sequence begins before an
    earlier one that waits.
    """
    free, counts = [num_pages] * num_replicas, [0] * num_replicas
    homes: list[int | None] = [None] * len(needs)

    def put(number: int, home: int) -> None:
        homes[number] = home
        free[home] -= needs[number]
        counts[home] += 1

    for number, owner in enumerate(owners):
        if owner is not None and needs[number] <= free[owner]:
            put(number, owner)
    for number, owner in enumerate(owners):
        if homes[number] is None:
            fitting = [replica for replica, left in enumerate(free) if needs[number] <= left]
            if owner is not None or not fitting:
                break
            put(number, _fewest(fitting, counts, free))
    if needs and all(home is None for home in homes):
        homes[0] = owners[0] or 0
    return homes
