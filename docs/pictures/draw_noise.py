"""Why sampling gives one text with every method: the noise of a position does not depend on the steps."""

from __future__ import annotations

import numpy as np

from docs.pictures import ink
from docs.pictures.ink import BOLD, MIDDLE, text
from lp.sampling.noise import gumbel

WIDTH, HEIGHT = 1020, 470
SEED, FIRST = 35, 40
WORDS = ("boat", "came", "back", "dawn", "night")
# Made up: the model's probabilities of the five words at each position.
PROBABILITIES = ((6, 2, 1, 1, 1), (1, 5, 3, 1, 1), (1, 2, 5, 1, 2), (1, 1, 1, 4, 5), (4, 1, 1, 2, 3))
LEFT, COLUMN, BASE, UNIT = 190, 160, 220, 22
# The tokens that each step yields.
STEPS = {"autoregressive, 5 steps": (1, 1, 1, 1, 1), "lookahead, 2 steps": (3, 2)}
TITLE = "At every position the model's scores and a noise of seed and position are added; the largest sum wins"


def sums() -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the log-probabilities of each position, and the project's own noise there."""
    weights = np.array(PROBABILITIES, float)
    scores = np.log(weights / weights.sum(axis=1, keepdims=True))
    return [(row, gumbel(SEED, FIRST + position, len(WORDS)).numpy()) for position, row in enumerate(scores)]


def chosen() -> list[int]:
    return [int(np.argmax(score + noise)) for score, noise in sums()]


def draw() -> str:
    shapes = [
        text(20, 34, "Position", 12, "faint"),
        text(20, 100, "Score and noise", 15, "ink", BOLD),
        text(20, 120, "of five words: the", 12, "faint"),
        text(20, 136, "largest sum is drawn", 12, "faint"),
    ]
    for position, (score, noise) in enumerate(sums()):
        shapes += _bars(position, score + noise)
    for line, (name, tokens) in enumerate(STEPS.items()):
        shapes += _text(name, tokens, 320 + 84 * line)
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def _bars(position: int, totals: np.ndarray) -> list[str]:
    x = LEFT + COLUMN * position
    best = int(np.argmax(totals))
    shapes = [
        text(x + 60, 34, str(FIRST + position), 12, "faint", MIDDLE),
        ink.path(f"M{x} {BASE} H{x + 120}", "edge", 1),
    ]
    for number, total in enumerate(totals):
        height = UNIT * max(0.15, total + 4)
        look = ("emitted", "accept", 2) if number == best else ("rank0", "edge", 1)
        shapes.append(ink.box(x + 14 + 23 * number, BASE - height / 2, 17, height, *look))
    return [*shapes, text(x + 60, BASE + 22, WORDS[best], 14, "accept", f"{MIDDLE} {BOLD}")]


def _text(name: str, steps: tuple[int, ...], y: float) -> list[str]:
    """The tokens of a method, with a frame around those that one step yielded."""
    method, _, count = name.partition(", ")
    shapes, position, words = [text(20, y, method, 15, "ink", BOLD), text(20, y + 18, count, 12, "faint")], 0, chosen()
    for number, size in enumerate(steps):
        x0, x1 = LEFT + COLUMN * position, LEFT + COLUMN * (position + size - 1) + 120
        shapes.append(ink.box((x0 + x1) / 2, y, x1 - x0 + 14, 46, ("rank0", "rank1")[number % 2]))
        for offset in range(size):
            shapes.append(text(x0 + COLUMN * offset + 60, y + 5, WORDS[words[position + offset]], 14, "ink", MIDDLE))
        position += size
    return shapes
