"""The report of a soak: the answers, the front end's resources over time, and what counts as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.faults.soak_load import LoadAnswer
from benchmarks.shared.report import describe_failures, markdown_table

# Share of a soak after which the front end has filled its caches, connection pools and thread pools.
SETTLED = 0.25
# Share by which a quantity may grow from the time it settled to the end.
MOST_GROWTH = 0.1
# How much each quantity varies from moment to moment, as requests come and ranks are on their way back.
SLACK = {"memory_mb": 16.0, "files": 8.0, "threads": 4.0, "processes": 2.0, "mappings": 3.0}
# The same for what ranks hold, where none is killed: a rank that starts anew holds less.
SLACK_OF_RANKS = {"ranks_memory_mb": 32.0, "ranks_files": 8.0, "ranks_threads": 4.0}
NAMES = {
    "memory_mb": "memory (RSS), MB",
    "files": "open files and sockets",
    "threads": "threads",
    "processes": "processes under it",
    "mappings": "shared memory mapped, by it and its ranks",
    "ranks_memory_mb": "memory of those processes (RSS), MB",
    "ranks_files": "their open files and sockets",
    "ranks_threads": "their threads",
}


@dataclass(frozen=True)
class ResourceSample:
    """The resources that the front end holds at one moment, and its ranks.

    processes: those under the front end. mappings: of our shared memory, by the front end and its ranks together.
    ranks_...: of the processes under it, together.
    """

    at_s: float
    memory_mb: float
    files: int
    threads: int
    processes: int
    mappings: int
    ranks_memory_mb: float
    ranks_files: int
    ranks_threads: int


@dataclass(frozen=True)
class SoakResult:
    """What happened in a soak.

    every_s: seconds between two kills; 0 if none was wanted. killed: the rank of each kill. held_back: kills left
    out because too few ranks served. epochs: number of the last epoch. left: files in shared memory that outlived
    the server.
    """

    minutes: float
    every_s: float
    clients: int
    ranks: int
    exchange: str
    killed: list[int]
    held_back: int
    epochs: int | None
    answers: list[LoadAnswer]
    holdings: list[ResourceSample]
    left: list[str]


def find_failures(soak: SoakResult) -> list[str]:
    """A line for each failure."""
    failures = [f"{answer.question}: {answer.wrong}" for answer in soak.answers if answer.wrong]
    if not soak.answers:
        failures.append("nothing was answered")
    if soak.every_s and not soak.killed:
        failures.append("no rank was killed")
    for quantity, slack in (SLACK if soak.every_s else SLACK | SLACK_OF_RANKS).items():
        settled, end = levels(soak.holdings, quantity)
        if end > settled * (1 + MOST_GROWTH) + slack:
            failures.append(f"{NAMES[quantity]} grew from {settled:.0f} to {end:.0f}")
    return failures + [f"left behind: {name}" for name in soak.left]


def levels(holdings: list[ResourceSample], quantity: str) -> tuple[float, float]:
    """The medians of a quantity in the quarter after it settled, and in the last quarter."""
    values = [getattr(holding, quantity) for holding in holdings]
    quarter = max(1, int(SETTLED * len(values)))
    return median(values[quarter : 2 * quarter] or values), median(values[-quarter:])


def describe(soak: SoakResult, failures: list[str]) -> str:
    return "\n\n".join(
        [
            f"{soak.ranks} ranks over {soak.exchange}, {soak.clients} clients, {soak.minutes:.3g} minutes: "
            + (f"{len(soak.killed)} ranks killed, one every {soak.every_s:g} s" if soak.every_s else "no rank killed")
            + (f", {soak.held_back} kills left out because only one rank served then" if soak.held_back else "")
            + f"; {soak.epochs} epochs. Clients measure the seconds. Longest pause: between two events of a stream.",
            markdown_table(
                ["answers", "number", "wrong or lost", "median, s", "99%, s", "longest, s", "longest pause, s"],
                list(_answer_rows(soak.answers)),
            ),
            "What the front end and its ranks hold (medians over a quarter of the time, and the most):",
            markdown_table(
                ["", "second quarter", "last quarter", "most"],
                [_holding_row(soak.holdings, quantity) for quantity in NAMES],
            ),
            describe_failures(failures),
        ]
    )


def _answer_rows(answers: list[LoadAnswer]) -> Iterator[list[Any]]:
    for size in ("short", "long"):
        for how, streamed in (("streamed", True), ("whole", False)):
            chosen = [a for a in answers if a.question.startswith(size) and a.is_streamed == streamed]
            if chosen:
                seconds = np.array([answer.seconds for answer in chosen])
                figures = [np.median(seconds), np.percentile(seconds, 99), seconds.max()]
                pause = f"{max(answer.longest_pause_s for answer in chosen):.2f}" if streamed else "-"
                wrong = sum(answer.wrong is not None for answer in chosen)
                yield [f"{size}, {how}", len(chosen), wrong, *(f"{figure:.2f}" for figure in figures), pause]


def _holding_row(holdings: list[ResourceSample], quantity: str) -> list[str]:
    most = max(getattr(holding, quantity) for holding in holdings)
    return [NAMES[quantity], *(f"{figure:.0f}" for figure in (*levels(holdings, quantity), most))]
