"""Lets replicas with few rows catch up with sequences of others, and drops what they hold when it is too much.

A replica that has caught up can take a part of a sequence's trees, or all of them, for the price of a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lp.model.kv_cache import PAGE, pages_of
from lp.runner import StepInput
from parallel.runners.shares import KnownTokens, Shares

# A replica follows a sequence if it has fewer rows than the largest load by this part of it, and by the second one
# where each replica has many sequences of its own: then new requests soon even the loads out.
SPARE = 1 / 4, 1 / 2
MANY = 2


def catch_up(
    steps: Sequence[StepInput], numbers: Sequence[Sequence[int]], all_shares: list[Shares], loads: list[int]
) -> None:
    """Has replicas with rows to spare compute tokens of sequences in which they take no part, up to the largest load.

    numbers: for each step, how many of its sequence's first tokens each replica has computed. all_shares, loads: of the
    batch; what is added to them is added in place. A prompt that is being fed is followed only by replicas without any
    other rows. A step that is not to be shared has no followers.
    """
    most = max(loads)
    spare = most * SPARE[len(steps) > MANY * len(loads)]
    idle = [replica for replica, rows in enumerate(loads) if most - rows > spare]
    if not idle:
        return
    works = [len(step.tree) + max(0, step.num_fed - max(known)) for step, known in zip(steps, numbers, strict=True)]
    for replica in idle:
        found = [
            (works[number] / (len(shares.rows) + len(shares.feeds)), step.num_fed - numbers[number][replica], number)
            for number, (step, shares) in enumerate(zip(steps, all_shares, strict=True))
            if step.is_shared
            and replica not in shares.rows
            and replica not in shares.feeds
            and numbers[number][replica] < step.num_fed
            and (len(step.tree) or not loads[replica])
        ]
        if found:
            largest = max(found)[0]
            _, lag, number = min((entry for entry in found if entry[0] * 2 > largest), key=lambda entry: entry[1:])
            num_rows = min(lag, most - loads[replica])
            all_shares[number].feeds[replica] = numbers[number][replica] + num_rows
            loads[replica] += num_rows


def drop_most_lagging(
    known: Mapping[str, KnownTokens], busy: Mapping[str, Shares], num_pages: int
) -> list[tuple[str, int]]:
    """Drops what followers hold, the most lagging first, while a replica may hold more than there is memory for.

    known: of all open sequences. busy: shares of those with a step now. num_pages: of each replica's memory. Returns
    the sequences and the replicas that hold nothing of them any more.
    """
    lengths = {name: max(one.numbers) for name, one in known.items()}
    if sum(lengths.values()) + len(lengths) * PAGE <= num_pages * PAGE:
        return []
    dropped = []
    for replica in range(len(next(iter(known.values())).numbers)):
        held = {name: number for name, one in known.items() if (number := one.numbers[replica])}
        lags = {name: lengths[name] - number for name, number in held.items()}
        excess = sum(map(pages_of, held.values())) - num_pages
        for name in sorted(held, key=lambda name: -lags[name]):
            if excess <= 0 or not lags[name]:
                break
            shares = busy.get(name)
            if shares is None or not (replica in shares.rows or replica in shares.feeds):
                known[name].forget(replica)
                excess -= pages_of(held[name])
                dropped.append((name, replica))
    return dropped
