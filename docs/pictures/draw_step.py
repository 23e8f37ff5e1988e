"""Draws docs/pictures/step.svg, one step of lookahead decoding on two ranks: `python docs/pictures/draw_step.py`.

The tree, its parts and the accepted tokens are made by the project's own code. Only the model is a toy: it continues
a short text by looking up the longest match in it. Knows nothing of how a real model is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lp.decoding.ngrams import NGramPool
from lp.decoding.tries import merge
from lp.decoding.window import Window
from lp.tree import TokenTree, TreeBuilder
from lp.verification import verify
from parallel.runners.partition import partition

OUTPUT = Path(__file__).with_name("step.svg")

TEXT = (
    "the boat left the harbour at dawn and the boat came back to the harbour at night and the boat left the harbour at "
    "dawn again and came back to the harbour at noon and the boat came back to the town at night and left again"
)
NUM_PROMPT, NUM_STEPS, SEED = 26, 6, 1
COLUMNS, NGRAM, GUESSES = 5, 4, 3

# Geometry in pixels: columns are positions after the root, lines are drafts or levels of the window.
WIDTH, HEIGHT = 1020, 556
ROOT_X, STEP_X, BOX_W, BOX_H = 186, 104, 84, 32
HEADER_Y, DRAFTS_Y, LINE_Y, ROOT_Y, WINDOW_Y, LEVEL_Y = 34, 84, 44, 226, 272, 48
TEXT_Y, LEGEND_Y = 458, 530

INK, FAINT, EDGE, GREEN = "#1f2933", "#5b6770", "#9aa5ae", "#00805d"
TINTS = {"0": "#bcdcf5", "1": "#ffd9a8", "01": "url(#both)"}
TITLE = "One step: a token tree of drafts and window cells, shared by two ranks, and the tokens it yields"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Step:
    """One step as it is drawn.

    words: the word of each token id. text: tokens up to the root. num_drafts: rows 1 to num_drafts are drafts, the
    rows after them the window's cells, level by level. parts: ascending rows of each rank. accepted: the rows walked,
    the root first. emitted: the tokens that the step yields.
    """

    words: list[str]
    text: list[int]
    tree: TokenTree
    num_drafts: int
    parts: list[list[int]]
    accepted: list[int]
    emitted: list[int]

    def ranks(self, row: int) -> str:
        """The ranks that compute a row, as a key of TINTS."""
        return "".join(str(rank) for rank, part in enumerate(self.parts) if row in part)


def run_steps() -> Step:
    """Decodes NUM_STEPS steps and returns the last one."""
    words: list[str] = sorted(set(TEXT.split()))
    story = [words.index(word) for word in TEXT.split()]
    tokens = story[:NUM_PROMPT]
    window, pool = Window(COLUMNS, NGRAM - 1, tokens, SEED), NGramPool(NGRAM, capacity=1000, per_token=8)
    pool.add_text(tokens, "text")
    for step in range(NUM_STEPS):
        builder = TreeBuilder(tokens[-1])
        num_drafts = len(merge(builder, pool.lookup(tokens[-1], GUESSES), NGRAM - 1))
        window.plan(builder)
        tree = builder.build()
        targets = np.array(
            [toy_model(story, tokens[:-1] + tree.tokens[tree.path(r)].tolist()) for r in range(len(tree))]
        )
        accepted = verify(tree, targets, 1 + num_drafts)
        if step == NUM_STEPS - 1:
            parts = partition(tree, num_parts=2)
            rows = [0, *(rows[0] for rows in accepted.drafted)]
            return Step(words, tokens, tree, num_drafts, parts, rows, accepted.tokens)
        for ngram in window.commit(targets, len(accepted.tokens)):
            pool.add(ngram, "window")
        tokens = tokens + accepted.tokens
        pool.add_text(tokens[-len(accepted.tokens) - NGRAM + 1 :], "text")
    raise AssertionError("NUM_STEPS must be positive")


def toy_model(story: Sequence[int], path: Sequence[int]) -> int:
    """The token that follows the longest end of `path` found in the story."""

    def length(end: int) -> int:
        longest = min(len(path), end)
        return next((k for k in range(longest) if path[-1 - k] != story[end - 1 - k]), longest)

    return story[max(range(1, len(story)), key=length)]


def place(step: Step) -> dict[int, tuple[float, float]]:
    """The centre of each row's box."""
    tree, lines, line = step.tree, {}, 0
    for row in range(step.num_drafts + 1):  # the lines of leaves, in the order of the drafts
        if row and not tree.children[row]:
            lines[row], line = DRAFTS_Y + LINE_Y * line, line + 1
    for row in range(step.num_drafts, 0, -1):  # children come before their parents
        if row not in lines:
            below = [lines[child] for child in tree.children[row]]
            lines[row] = sum(below) / len(below)
    lines[0] = ROOT_Y
    for row in range(1 + step.num_drafts, len(tree)):
        lines[row] = WINDOW_Y + LEVEL_Y * ((row - 1 - step.num_drafts) // COLUMNS)
    return {row: (ROOT_X + STEP_X * int(tree.depths[row]), y) for row, y in lines.items()}


def draw(step: Step) -> str:
    """The whole picture as SVG text."""
    places = place(step)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}">',
            f"<title>{TITLE}</title>",
            f"<defs>{_both_ranks()}</defs>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
            *_labels(),
            *_edges(step, places),
            *_boxes(step, places),
            *_text_line(step),
            *_legend(step),
            "</svg>\n",
        ]
    )


def _both_ranks() -> str:
    """The fill of rows that both ranks compute: a tint for each half."""
    stops = "".join(f'<stop offset="0.5" stop-color="{TINTS[rank]}"/>' for rank in "01")
    return f'<linearGradient id="both" x1="0" y1="0" x2="1" y2="1">{stops}</linearGradient>'


def _text(x: float, y: float, words: str, size: int = 14, colour: str = INK, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" {more}>{words}</text>'


def _box(x: float, y: float, word: str, fill: str, outline: str = EDGE, more: str = 'stroke-width="1"') -> list[str]:
    """A word in a box around (x, y)."""
    return [
        f'<rect x="{x - BOX_W / 2:g}" y="{y - BOX_H / 2:g}" width="{BOX_W}" height="{BOX_H}" rx="6" '
        f'fill="{fill}" stroke="{outline}" {more}/>',
        _text(x, y + 5, word, more='text-anchor="middle"'),
    ]


def _labels() -> list[str]:
    """Positions above the columns, and names beside the lines."""
    lines = [
        _text(20, HEADER_Y, "Position", 12, FAINT),
        _text(ROOT_X, HEADER_Y, "root", 12, FAINT, 'text-anchor="middle"'),
    ]
    for depth in range(1, COLUMNS + NGRAM - 1):
        lines.append(_text(ROOT_X + STEP_X * depth, HEADER_Y, f"+{depth}", 12, FAINT, 'text-anchor="middle"'))
    for y, name, *details in (
        (DRAFTS_Y, "Drafts", "n-grams that follow", "the root, as a trie"),
        (WINDOW_Y + 40, "Window", f"{COLUMNS} columns,", f"{NGRAM - 1} levels of guesses"),
    ):
        lines.append(_text(20, y, name, 15, INK, 'font-weight="bold"'))
        lines += [_text(20, y + 19 + 16 * line, detail, 12, FAINT) for line, detail in enumerate(details)]
    return lines


def _edges(step: Step, places: dict[int, tuple[float, float]]) -> list[str]:
    """A curve from each parent to its child; those of the accepted path last and in green."""
    curves: list[tuple[bool, str]] = []
    for row in range(1, len(step.tree)):
        (x0, y0), (x1, y1) = places[int(step.tree.parents[row])], places[row]
        start, end = x0 + BOX_W / 2, x1 - BOX_W / 2
        middle = (start + end) / 2
        lit = row in step.accepted
        style = f'stroke="{GREEN}" stroke-width="4"' if lit else f'stroke="{EDGE}" stroke-width="1.5"'
        path = f"M{start:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {end:g} {y1:g}"
        curves.append((lit, f'<path d="{path}" fill="none" {style}/>'))
    return [curve for _, curve in sorted(curves, key=lambda item: item[0])]


def _boxes(step: Step, places: dict[int, tuple[float, float]]) -> list[str]:
    """A box for each row, and a dashed one for the bonus token, which no row has guessed."""
    lines = []
    for row, (x, y) in places.items():
        lit = (GREEN, 'stroke-width="3"') if row in step.accepted else ()
        lines += _box(x, y, step.words[int(step.tree.tokens[row])], TINTS[step.ranks(row)], *lit)
    x, y = places[step.accepted[-1]]
    dashes = 'stroke-width="2" stroke-dasharray="5 4"'
    lines.append(
        f'<path d="M{x + BOX_W / 2:g} {y:g} H{x + STEP_X - BOX_W / 2:g}" stroke="{GREEN}" {dashes} fill="none"/>'
    )
    return lines + _box(x + STEP_X, y, step.words[step.emitted[-1]], "#ffffff", GREEN, dashes)


def _text_line(step: Step) -> list[str]:
    """The text so far, and the tokens that the step adds to it."""
    before = " ".join(step.words[token] for token in step.text[-7:])
    x = ROOT_X + STEP_X * 2 + 20
    lines = [
        f'<path d="M20 {TEXT_Y - 40} H{WIDTH - 20}" stroke="#dde2e6"/>',
        _text(20, TEXT_Y + 5, "Text", 15, INK, 'font-weight="bold"'),
        _text(x, TEXT_Y + 5, f"… {before}", 15, INK, 'text-anchor="end"'),
    ]
    for number, token in enumerate(step.emitted):
        lines += _box(x + 14 + BOX_W / 2 + (BOX_W + 8) * number, TEXT_Y, step.words[token], "#d5f2e6", GREEN)
    x += 14 + (BOX_W + 8) * len(step.emitted)
    return [*lines, _text(x + 6, TEXT_Y + 5, f"{len(step.emitted)} tokens, one step", 14, GREEN, 'font-weight="bold"')]


def _legend(step: Step) -> list[str]:
    """What the tints and outlines mean."""
    both = len(set(step.parts[0]).intersection(step.parts[1]))
    entries = [
        (165, TINTS["0"], EDGE, "1", f"rank 0: {len(step.parts[0])} rows"),
        (165, TINTS["1"], EDGE, "1", f"rank 1: {len(step.parts[1])} rows"),
        (175, TINTS["01"], EDGE, "1", f"both ranks: {both} rows"),
        (240, "#ffffff", GREEN, "3", "accepted: the model agrees"),
        (200, "#ffffff", GREEN, '2" stroke-dasharray="5 4', "the model's own next token"),
    ]
    lines, x = [], 20
    for width, fill, outline, stroke, meaning in entries:
        lines.append(
            f'<rect x="{x}" y="{LEGEND_Y - 13}" width="26" height="18" rx="4" fill="{fill}" stroke="{outline}" '
            f'stroke-width="{stroke}"/>'
        )
        lines.append(_text(x + 34, LEGEND_Y + 1, meaning, 13, FAINT))
        x += width
    return lines


if __name__ == "__main__":
    OUTPUT.write_text(draw(run_steps()), encoding="utf-8")
