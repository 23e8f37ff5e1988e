"""How many drafts pay: tokens per second by the number of drafts, from a measured curve of step times.

The curve is that of SmolLM2-135M-Instruct in benchmarks/results. The odds of drafts are made up: the best one is
right with a probability of 0.8, and each further one less often by a tenth.
"""

from __future__ import annotations

import numpy as np

from benchmarks.shared.result_pages import RESULTS, read_tables
from docs.pictures import ink
from docs.pictures.ink import BOLD, END, MIDDLE, text
from lp.scheduling.planner import best_number

FILE = RESULTS / "step_time-SmolLM2-135M-Instruct.Q4_1-bfloat16.md"
WIDTH, HEIGHT = 1020, 400
LEFT, RIGHT, TOP, BOTTOM = (70, 470), (580, 980), 70, 330
MOST_ROWS = 64
LOADS = {1: "accept", 4: "faint"}
ODDS = 0.8 * 0.9 ** np.arange(MOST_ROWS)
TITLE = "A step takes longer the more rows it has, so only as many drafts are taken as raise the tokens per second"


def step_times() -> tuple[list[int], list[float]]:
    """Measured rows and seconds of a step with 256 cached tokens, compiled."""
    table = read_tables(FILE)[0]  # milliseconds, each with its quartiles behind it
    found = {int(row["rows"]): float(row["two_part, compiled"].split()[0]) / 1000 for row in table}
    return [*found], [*found.values()]


def speeds(load: int) -> tuple[np.ndarray, int]:
    """Tokens per second with 0, 1, 2, ... drafts, and the best number of them, by the project's own code."""
    odds = np.sort(np.repeat(ODDS[: MOST_ROWS // load], load))[::-1][: MOST_ROWS - load]
    seconds = np.interp(np.arange(load, load + len(odds) + 1), *step_times())
    expected = np.cumsum(np.concatenate([[float(load)], odds]))
    return expected / seconds, best_number(load, odds, seconds)


def draw() -> str:
    shapes = [*_axes(LEFT, "Milliseconds of a step", "rows of the step"), *_curve()]
    shapes += [*_axes(RIGHT, "Expected tokens per second", "drafts in the step")]
    most = max(float(speeds(load)[0].max()) for load in LOADS)
    for load, stroke in LOADS.items():
        shapes += _speed(load, stroke, most * 1.08)
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def _axes(span: tuple[int, int], title: str, below: str) -> list[str]:
    shapes = [text(span[0] - 50, 34, title, 15, "ink", BOLD), ink.path(f"M{span[0]} {BOTTOM} H{span[1]}", "faint", 1)]
    for rows in range(0, MOST_ROWS + 1, 16):
        shapes.append(text(_x(span, rows), BOTTOM + 20, str(rows), 12, "faint", MIDDLE))
    return [*shapes, text((span[0] + span[1]) / 2, BOTTOM + 44, below, 13, "faint", MIDDLE)]


def _x(span: tuple[int, int], number: float) -> float:
    return span[0] + (span[1] - span[0]) * number / MOST_ROWS


def _curve() -> list[str]:
    rows, seconds = step_times()
    places = [
        (_x(LEFT, number), BOTTOM - (BOTTOM - TOP) * second / 0.03)
        for number, second in zip(rows, seconds, strict=True)
        if number <= MOST_ROWS
    ]
    lines = [
        text(LEFT[0] - 10, BOTTOM - (BOTTOM - TOP) * ms / 30 + 4, str(ms), 12, "faint", END) for ms in (10, 20, 30)
    ]
    line = ink.path("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places), "accept", 2.5)
    return [*lines, line, *(ink.dot(x, y, 4, "emitted", "accept", 1.5) for x, y in places)]


def _speed(load: int, stroke: str, most: float) -> list[str]:
    """The curve of a number of requests, with its best number of drafts."""
    found, best = speeds(load)
    places = [(_x(RIGHT, number), BOTTOM - (BOTTOM - TOP) * speed / most) for number, speed in enumerate(found)]
    line = ink.path("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places), stroke, 2.5)
    x, y = places[best]
    noun = "request" if load == 1 else "requests"
    words = f"{load} {noun}: {best} drafts pay"
    return [line, ink.dot(x, y, 6, "emitted", "accept", 2), text(x, y - 13, words, 13, "ink", MIDDLE)]
