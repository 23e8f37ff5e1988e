"""The way of a request through the files of one rank, and what the other ranks get of it."""

from __future__ import annotations

from docs.pictures import ink
from docs.pictures.ink import BOLD, MIDDLE, text

WIDTH, HEIGHT = 1020, 640
BOX_W, BOX_H, LINE, TOP = 356, 56, 88, 110
LEFT_X, RIGHT_X = 226, 794
# Files and what they do, from a client to the model.
WAY = (
    ("launch/server/generation.py", "conversion.py: a body becomes a Request"),
    ("launch/server/service.py", "the queue before the engine"),
    ("parallel/groups/worker.py", "the worker loop"),
    ("lp/engine/engine.py", "schedule, plan, start, finish, commit"),
    ("parallel/runners/lookahead.py", "this rank's part of the tree"),
    ("lp/runner/single_device.py", "model, KV cache, sampler"),
)
HANDED = ("", "AddRequest, Abort", "", "StepInput", "")
FIRST_SHARED = 2
TITLE = "The way of a request: routes, service, loop, engine, runner and device on rank 0; the last four on every rank"


def draw() -> str:
    shapes = [
        *_frame(LEFT_X, TOP - 52, len(WAY), "Process of rank 0"),
        *_frame(RIGHT_X, TOP - 52 + LINE * FIRST_SHARED, len(WAY) - FIRST_SHARED, "Every other rank"),
        text(LEFT_X, 26, "client, over HTTP", 14, "ink", MIDDLE),
        ink.arrow(LEFT_X, 34, LEFT_X, 56),
    ]
    for number, (file, what) in enumerate(WAY):
        shapes += _box(LEFT_X, number, file, what)
        if number >= FIRST_SHARED:
            shapes += _box(RIGHT_X, number, file, what)
    for number, words in enumerate(HANDED):
        for x in (LEFT_X, RIGHT_X) if number >= FIRST_SHARED else (LEFT_X,):
            y = TOP + LINE * number + BOX_H / 2
            shapes += [ink.arrow(x, y, x, y + LINE - BOX_H), text(x + 10, y + 21, words, 12.5, "faint")]
    shapes += _between(FIRST_SHARED, "commands,", "JSON lines") + _between(4, "one exchange", "per step", True)
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def _frame(x: float, y: float, lines: int, name: str) -> list[str]:
    height = LINE * lines + 26
    return [
        ink.box(x, y + height / 2, BOX_W + 60, height, "none", "edge"),
        text(x - BOX_W / 2 - 16, y + 19, name, 13, "faint", BOLD),
    ]


def _box(x: float, number: int, file: str, what: str) -> list[str]:
    y = TOP + LINE * number
    return [
        ink.box(x, y, BOX_W, BOX_H, "rank0" if x == LEFT_X else "rank1"),
        text(x, y - 5, file, 14.5, "ink", f"{MIDDLE} {BOLD}"),
        text(x, y + 15, what, 13, "ink", MIDDLE),
    ]


def _between(number: int, first: str, second: str, both_ways: bool = False) -> list[str]:
    y, x0, x1 = TOP + LINE * number, LEFT_X + BOX_W / 2, RIGHT_X - BOX_W / 2
    middle = (x0 + x1) / 2
    shapes = [ink.arrow(x0 + 2, y, x1 - 2, y)]
    if both_ways:
        shapes.append(ink.arrow(x1 - 2, y, x0 + 2, y))
    return [
        *shapes,
        text(middle, y - 24, first, 12.5, "faint", MIDDLE),
        text(middle, y - 9, second, 12.5, "faint", MIDDLE),
    ]
