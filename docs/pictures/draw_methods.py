"""One step of each of five methods at the same place of a text: its tree, and what of it is accepted.

The trees are planned by the project's own decoders; only the model is the toy of story.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from docs.pictures import ink
from docs.pictures.ink import BOLD, MIDDLE, text
from docs.pictures.story import NUM_PROMPT, SEED, TEXT, toy_model
from lp.drafting.history import DraftHistory
from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.methods.jacobi import Jacobi
from lp.methods.lookahead import Lookahead
from lp.methods.prompt_lookup import PromptLookup
from lp.request import DecodingContext, DecodingMethod, Request
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping
from lp.tree import PREFIX, Accepted, Answers, TokenTree

# The place of the text at which all methods are drawn, and what each is set to.
PLACE = 35
SHOWN: list[tuple[DecodingMethod, str]] = [
    (Autoregressive(), "nothing under the root"),
    (Jacobi(5), "a chain of guesses"),
    (PromptLookup(4, 3), "n-grams of the text, a trie"),
    (Lookahead(4, 4, 3), "n-grams and the window"),
    (Auto(rows=9, max_window=0), "the likeliest drafts of all sources"),
]
# What the words beside a tree take, in lines after the first.
LEAST_LINES = 0.6
# Geometry in pixels.
WIDTH, ROOT_X, STEP_X, BOX_W, BOX_H, LINE_Y, PANEL_GAP, HEADER_Y, LEGEND_H = 1020, 290, 104, 84, 28, 36, 30, 44, 44
TITLE = "The trees of five methods for the same text: a root, a chain of guesses, a trie of n-grams, and a window"


@dataclass(frozen=True)
class Planned:
    """A step of a method. cells: the rows of the window, level by level. columns: of the window; 0 without one.
    accepted: what the toy model confirms.
    """

    tree: TokenTree
    cells: list[int]
    columns: int
    accepted: Accepted


def draw() -> str:
    words = sorted(set(TEXT.split()))
    shapes, y = [], float(HEADER_Y)
    for settings, told in SHOWN:
        step = plan(settings, [words.index(word) for word in TEXT.split()])
        lines = place(step)
        shapes += _panel(step, lines, words, y, settings.method, told)
        y += LINE_Y * (1 + max(LEAST_LINES, *lines)) + PANEL_GAP
        shapes.append(ink.path(f"M20 {y - 33:g} H{WIDTH - 20}", "line", 1))
    return ink.svg(WIDTH, round(y) + LEGEND_H - 20, TITLE, [*_header(), *shapes, *_legend(y + 4)])


def plan(settings: DecodingMethod, story: Sequence[int]) -> Planned:
    """The step of a method at PLACE, where it has come step by step from the prompt."""
    tokens = list(story[:NUM_PROMPT])
    request = Request("", tokens, settings, Sampling(temperature=0.0, seed=SEED), Stopping(1))
    decoder = settings.make_decoder(request, DecodingContext(DraftHistory()))
    while True:
        wanted = PLACE - len(tokens) or len(story)
        tree = decoder.plan(tokens, len(story), wanted)
        described = decoder.describe()
        cells = [row for row, source in enumerate(described.sources) if source == "cell"]
        accepted, count = decoder.commit(tokens, answer(tree, tokens, story, decoder.num_candidates))
        count()
        if len(tokens) == PLACE:
            return Planned(tree, cells, described.window[0] if described.window else 0, accepted)
        tokens = tokens + accepted.tokens[:wanted]


def answer(tree: TokenTree, tokens: list[int], story: Sequence[int], num_candidates: int) -> Answers:
    """The toy model's answers. Its candidates after the best one are the other words, in an order of no meaning."""
    paths = [tokens[:-1] + tree.tokens[tree.path(row)].tolist() for row in range(len(tree))]
    targets = [toy_model(story, path) for path in paths]
    if not num_candidates:
        return Answers(np.array(targets))
    others = range(len(set(story)))
    best = [[target, *(other for other in others if other != target)][:num_candidates] for target in targets]
    return Answers(np.array(targets), np.array(best, np.int32))


def place(step: Planned) -> list[float]:
    """The line of each row: drafts as a trie, a line for each leaf, and below them one for each level of the window."""
    parents, drafts = step.tree.parents.tolist(), [row for row in range(len(step.tree)) if row not in step.cells]
    lines: dict[int, float] = {}
    for row in drafts:
        if row and row not in {parents[other] for other in drafts}:
            lines[row] = len(lines)
    first_level = len(lines)
    for row in reversed(drafts):  # children come before their parents
        below = [lines[other] for other in drafts if other and parents[other] == row]
        if below:
            lines[row] = sum(below) / len(below)
    lines.setdefault(0, 0)
    lines |= {row: first_level + number // step.columns for number, row in enumerate(step.cells)}
    return [lines[row] for row in range(len(step.tree))]


def _header() -> list[str]:
    lines = [text(ROOT_X, 22, "root", 12, "faint", MIDDLE)]
    return lines + [text(ROOT_X + STEP_X * depth, 22, f"+{depth}", 12, "faint", MIDDLE) for depth in range(1, 7)]


def _panel(step: Planned, lines: list[float], words: list[str], y: float, name: str, told: str) -> list[str]:
    """A method's tree, with its name on the left."""
    parents, depths = step.tree.parents.tolist(), step.tree.depths.tolist()
    places = [(ROOT_X + STEP_X * depth, y + LINE_Y * line) for depth, line in zip(depths, lines, strict=True)]
    path = [0, *(rows[0] for rows in step.accepted.drafted)]
    number = len(step.accepted.tokens)
    shapes = [
        text(20, y + 1, name, 15, "ink", BOLD),
        text(20, y + 18, told, 12, "faint"),
        text(
            20,
            y + 34,
            f"{len(step.tree)} row{'s'[: len(step.tree) - 1]}, {number} token{'s'[: number - 1]}",
            12,
            "accept",
            BOLD,
        ),
    ]
    for row, parent in sorted(enumerate(parents), key=lambda item: item[0] in path):
        if parent != PREFIX:
            (x0, y0), (x1, y1) = places[parent], places[row]
            shapes.append(
                ink.curve(x0 + BOX_W / 2, y0, x1 - BOX_W / 2, y1, *(("accept", 4.0) if row in path else ("edge", 1.5)))
            )
    for row, (x, line) in enumerate(places):
        outline = ("accept", 3.0) if row in path else ("edge", 1.0)
        fill = "rank2" if row in step.cells else "rank0" if row else "paper"
        shapes += [
            ink.box(x, line, BOX_W, BOX_H, fill, *outline),
            text(x, line + 5, words[int(step.tree.tokens[row])], more=MIDDLE),
        ]
    return shapes


def _legend(y: float) -> list[str]:
    entries = [
        ("paper", "edge", 1, "the root: the text's last token"),
        ("rank0", "edge", 1, "a draft"),
        ("rank2", "edge", 1, "a cell of the window"),
        ("paper", "accept", 3, "accepted: the model agrees; its next token comes with it"),
    ]
    shapes, x = [], 20.0
    for fill, stroke, line, meaning in entries:
        shapes += [ink.box(x + 13, y - 4, 26, 18, fill, stroke, line), text(x + 34, y + 1, meaning, 13, "faint")]
        x += 60 + 6.6 * len(meaning)
    return shapes
