"""Lets replicas with few rows catch up with sequences of others, and drops what they hold when it is too much.

A replica that has caught up can take a part of a sequence's trees, or all of them, for the price of a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lp.kv_cache.cache import pages_of
from lp.runner.runner import StepInput
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.rooms import Rooms
from parallel.runners.shares import KnownTokens, Shares

# A replica follows a sequence if it has fewer rows than the largest load by this part of it, and by the second one
# where each replica has many sequences of its own: then new requests soon even the loads out.
SPARE = 1 / 4, 1 / 2
MANY = 2


def catch_up(
    steps: Sequence[StepInput],
    numbers: Sequence[Sequence[int]],
    all_shares: list[Shares],
    loads: list[int],
    copy_cost: CopyCost = NO_COPIES,
) -> None:
    """Has replicas with rows to spare compute or copy tokens of sequences in which they take no part, up to the largest
    load.

    numbers: for each step, how many of its sequence's first tokens each replica has computed. all_shares, loads: of the
    batch; what is added to them is added in place. A prompt that is being fed is followed only by replicas without any
    other rows. A step that is not to be shared has no followers, and no replica with a negative number follows it.
    """
    most = max(loads)
    spare = most * SPARE[len(steps) > MANY * len(loads)]
    idle = [replica for replica, rows in enumerate(loads) if most - rows > spare]
    if not idle:
        return
    works = [
        len(step.tree) + max(0, step.num_computed - max(known)) for step, known in zip(steps, numbers, strict=True)
    ]
    for replica in idle:
        spare = most - loads[replica]
        found: list[tuple[float, int, int, int, int]] = []  # worth, lag, number, tokens afterwards, rows
        for number, (step, shares) in enumerate(zip(steps, all_shares, strict=True)):
            own = numbers[number][replica]
            if (
                not step.is_shared
                or replica in shares.rows
                or replica in shares.feeds
                or not 0 <= own < step.num_computed
            ):
                continue
            if not len(step.tree) and loads[replica]:
                continue
            num_computed, num_rows = copy_cost.reach(step, own, max(numbers[number]), spare)
            if num_computed > own:
                worth = works[number] / (len(shares.rows) + len(shares.feeds))
                found.append((worth, step.num_computed - own, number, num_computed, num_rows))
        largest = max(found)[0] if found else 0
        if largest > 0:  # a prompt that is fed again may be held by its owner already
            *_, number, num_computed, num_rows = min(
                (entry for entry in found if entry[0] * 2 > largest), key=lambda entry: entry[1:]
            )
            all_shares[number].feeds[replica] = num_computed
            loads[replica] += num_rows


def drop_most_lagging(
    known: Mapping[str, KnownTokens], busy: Mapping[str, Shares], rooms: Rooms
) -> list[tuple[str, int]]:
    """Drops what followers hold, the most lagging first, while a replica may hold more than there is memory for.

    known: of all open sequences. busy: shares of those with a step now. Returns the sequences and the replicas that
    hold nothing of them any more. Nothing is dropped of a sequence at home, or at its owner if it has no home.
    """
    lengths, homes = {name: max(one.numbers) for name, one in known.items()}, rooms.homes
    most = sum(rooms.reserved) + sum(pages_of(length) for name, length in lengths.items() if name not in homes)
    if most <= rooms.num_pages:
        return []
    dropped = []
    for replica, reserved in enumerate(rooms.reserved):
        lags: dict[str, int] = {}
        excess = reserved - rooms.num_pages
        for name, one in known.items():
            home = homes.get(name)
            if home and home.replica == replica:
                continue
            number, shares = one.numbers[replica], busy.get(name)
            if shares and (replica in shares.rows or replica in shares.feeds):
                excess += max(pages_of(number), home.num_pages if home else 0)
            elif number:
                excess += pages_of(number)
                if home or number < lengths[name]:
                    lags[name] = lengths[name] - number
        for name in sorted(lags, key=lambda name: -lags[name]):
            if excess <= 0:
                break
            excess -= pages_of(known[name].numbers[replica])
            known[name].forget(replica)
            dropped.append((name, replica))
    return dropped
