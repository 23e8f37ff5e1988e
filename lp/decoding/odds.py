"""Orders the odds of drafts that can only be taken in one order, such as parents before their children."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import ge


def descending(odds: Sequence[float]) -> list[float]:
    """The odds, with means in place of the runs in which a later draft is likelier than an earlier one.

    A draft that is likelier than the one before it can only be had together with it. Where each row of a run costs the
    same, taking a part of the run is never the best choice, so the means lead to the same choices.
    """
    if all(map(ge, odds, islice(odds, 1, None))):
        return list(odds)
    runs: list[tuple[float, int]] = []  # the mean and the length of each
    for mean in odds:
        length = 1
        while runs and runs[-1][0] < mean:
            before, more = runs.pop()
            mean = (before * more + mean * length) / (more + length)
            length += more
        runs.append((mean, length))
    return [mean for mean, length in runs for _ in range(length)]
