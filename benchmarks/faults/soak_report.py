"""What a soak has shown: answers, what the front end held over time, and what of it is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.faults.soak_load import Answer
from benchmarks.shared.report import markdown_table

SETTLED = 0.25
"""Share of a soak after which the front end has filled what it keeps: caches, pools of connections, threads."""
MOST_GROWTH = 0.1
"""By which share of itself a quantity may be larger at the end than when it had settled."""
SLACK = {"memory_mb": 16.0, "files": 8.0, "threads": 4.0, "processes": 2.0, "mappings": 3.0}
"""What each quantity moves by from moment to moment, as requests come and ranks are on their way back."""
NAMES = {
    "memory_mb": "memory (RSS), MB",
    "files": "open files and sockets",
    "threads": "threads",
    "processes": "processes under it",
    "mappings": "shared memory mapped, by it and its ranks",
}


@dataclass(frozen=True)
class Holding:
    """What the front end holds at a moment. mappings: of our shared memory, by the front end and its ranks."""

    at_s: float
    memory_mb: float
    files: int
    threads: int
    processes: int
    mappings: int


@dataclass(frozen=True)
class Soak:
    """killed: the rank of each kill. held_back: kills left out since too few ranks served. epochs: the last's number.
    left: what outlived the server.
    """

    minutes: float
    every_s: float
    clients: int
    ranks: int
    exchange: str
    killed: list[int]
    held_back: int
    epochs: int | None
    answers: list[Answer]
    holdings: list[Holding]
    left: list[str]


def find_failures(soak: Soak) -> list[str]:
    """One line each."""
    failures = [f"{answer.question}: {answer.wrong}" for answer in soak.answers if answer.wrong]
    if not soak.answers:
        failures.append("nothing was answered")
    if not soak.killed:
        failures.append("no rank was killed")
    for quantity in SLACK:
        settled, end = levels(soak.holdings, quantity)
        if end > settled * (1 + MOST_GROWTH) + SLACK[quantity]:
            failures.append(f"{NAMES[quantity]} grew from {settled:.0f} to {end:.0f}")
    return failures + [f"left behind: {name}" for name in soak.left]


def levels(holdings: list[Holding], quantity: str) -> tuple[float, float]:
    """Medians of a quantity in the quarter after it had settled, and in the last quarter."""
    values = [getattr(holding, quantity) for holding in holdings]
    quarter = max(1, int(SETTLED * len(values)))
    return median(values[quarter : 2 * quarter] or values), median(values[-quarter:])


def describe(soak: Soak, failures: list[str]) -> str:
    return "\n\n".join(
        [
            f"{soak.ranks} ranks over {soak.exchange}, {soak.clients} clients, {soak.minutes:g} minutes: "
            f"{len(soak.killed)} ranks killed, one every {soak.every_s:g} s"
            + (f", {soak.held_back} kills left out as one rank served at the time" if soak.held_back else "")
            + f"; {soak.epochs} epochs. Seconds are the clients'; the longest pause is between events of a stream.",
            markdown_table(
                ["answers", "number", "wrong or lost", "median, s", "99%, s", "longest, s", "longest pause, s"],
                list(_answer_rows(soak.answers)),
            ),
            "What the front end holds, as medians over a quarter of the time:",
            markdown_table(
                ["", "second quarter", "last quarter", "most"],
                [_holding_row(soak.holdings, quantity) for quantity in NAMES],
            ),
            "\n".join(["FAILED:", "", *(f"- {line}" for line in failures)]) if failures else "Nothing failed.",
        ]
    )


def _answer_rows(answers: list[Answer]) -> Iterator[list[Any]]:
    for size in ("short", "long"):
        for how, streamed in (("streamed", True), ("whole", False)):
            chosen = [a for a in answers if a.question.startswith(size) and a.is_streamed == streamed]
            if chosen:
                seconds = np.array([answer.seconds for answer in chosen])
                figures = [np.median(seconds), np.percentile(seconds, 99), seconds.max()]
                pause = f"{max(answer.longest_pause_s for answer in chosen):.2f}" if streamed else "-"
                wrong = sum(answer.wrong is not None for answer in chosen)
                yield [f"{size}, {how}", len(chosen), wrong, *(f"{figure:.2f}" for figure in figures), pause]


def _holding_row(holdings: list[Holding], quantity: str) -> list[str]:
    most = max(getattr(holding, quantity) for holding in holdings)
    return [NAMES[quantity], *(f"{figure:.0f}" for figure in (*levels(holdings, quantity), most))]
