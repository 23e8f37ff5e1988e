"""One step of lookahead decoding on two ranks: its tree, what is accepted, and the tokens that it yields."""

from __future__ import annotations

from docs.pictures import ink
from docs.pictures.ink import BOLD, END, MIDDLE, text
from docs.pictures.story import COLUMNS, NGRAM, Step, chosen_step

# Geometry in pixels: columns are positions after the root, lines are drafts or levels of the window.
WIDTH, HEIGHT = 1020, 556
ROOT_X, STEP_X, BOX_W, BOX_H = 186, 104, 84, 32
HEADER_Y, DRAFTS_Y, LINE_Y, ROOT_Y, WINDOW_Y, LEVEL_Y = 34, 84, 44, 226, 272, 48
TEXT_Y, LEGEND_Y = 458, 530
TINTS = {"0": "rank0", "1": "rank1", "01": "both"}
TITLE = "One step: a token tree of drafts and window cells, shared by two ranks, and the tokens it yields"


def draw() -> str:
    return draw_step(chosen_step())


def draw_step(step: Step) -> str:
    """The whole picture as SVG text."""
    places = place(step)
    shapes = [*_labels(), *_edges(step, places), *_boxes(step, places), *_text_line(step), *_legend(step)]
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes, both_ranks())


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


def both_ranks() -> str:
    """The fill of rows that both ranks compute: a tint for each half."""
    stops = "".join(
        f'<stop offset="0.5" stop-color="{ink.COLOURS[name][0]}" class="p-{name}"/>' for name in ("rank0", "rank1")
    )
    return f'<linearGradient id="both" x1="0" y1="0" x2="1" y2="1">{stops}</linearGradient>'


def tint(shape: str) -> str:
    """A shape that is filled with "both", which is no colour but a gradient."""
    return shape.replace('fill="#ffffff"', 'fill="url(#both)"').replace("f-paper", "f-both")


def _box(x: float, y: float, word: str, fill: str, stroke: str = "edge", line: float = 1) -> list[str]:
    """A word in a box around (x, y)."""
    shape = ink.box(x, y, BOX_W, BOX_H, "paper" if fill == "both" else fill, stroke, line)
    return [tint(shape) if fill == "both" else shape, text(x, y + 5, word, more=MIDDLE)]


def _labels() -> list[str]:
    """Positions above the columns, and names beside the lines."""
    lines = [text(20, HEADER_Y, "Position", 12, "faint"), text(ROOT_X, HEADER_Y, "root", 12, "faint", MIDDLE)]
    for depth in range(1, COLUMNS + NGRAM - 1):
        lines.append(text(ROOT_X + STEP_X * depth, HEADER_Y, f"+{depth}", 12, "faint", MIDDLE))
    for y, name, *details in (
        (DRAFTS_Y, "Drafts", "n-grams that follow", "the root, as a trie"),
        (WINDOW_Y + 40, "Window", f"{COLUMNS} columns,", f"{NGRAM - 1} levels of guesses"),
    ):
        lines.append(text(20, y, name, 15, "ink", BOLD))
        lines += [text(20, y + 19 + 16 * line, detail, 12, "faint") for line, detail in enumerate(details)]
    return lines


def _edges(step: Step, places: dict[int, tuple[float, float]]) -> list[str]:
    """A curve from each parent to its child; those of the accepted path last and in green."""
    curves: list[tuple[bool, str]] = []
    for row in range(1, len(step.tree)):
        (x0, y0), (x1, y1) = places[int(step.tree.parents[row])], places[row]
        lit = row in step.accepted
        look = ("accept", 4.0) if lit else ("edge", 1.5)
        curves.append((lit, ink.curve(x0 + BOX_W / 2, y0, x1 - BOX_W / 2, y1, *look)))
    return [curve for _, curve in sorted(curves, key=lambda item: item[0])]


def _boxes(step: Step, places: dict[int, tuple[float, float]]) -> list[str]:
    """A box for each row, and a dashed one for the bonus token, which no row has guessed."""
    lines = []
    for row, (x, y) in places.items():
        stroke, line = ("accept", 3.0) if row in step.accepted else ("edge", 1.0)
        lines += _box(x, y, step.words[int(step.tree.tokens[row])], TINTS[step.ranks(row)], stroke, line)
    x, y = places[step.accepted[-1]]
    lines.append(ink.path(f"M{x + BOX_W / 2:g} {y:g} H{x + STEP_X - BOX_W / 2:g}", "accept", 2, DASHES))
    return lines + dashed(_box(x + STEP_X, y, step.words[step.emitted[-1]], "paper", "accept", 2))


DASHES = 'stroke-dasharray="5 4"'


def dashed(shapes: list[str]) -> list[str]:
    return [shapes[0].replace("/>", f" {DASHES}/>"), *shapes[1:]]


def _text_line(step: Step) -> list[str]:
    """The text so far, and the tokens that the step adds to it."""
    before = " ".join(step.words[token] for token in step.text[-7:])
    x = ROOT_X + STEP_X * 2 + 20
    lines = [
        ink.path(f"M20 {TEXT_Y - 40} H{WIDTH - 20}", "line", 1),
        text(20, TEXT_Y + 5, "Text", 15, "ink", BOLD),
        text(x, TEXT_Y + 5, f"… {before}", 15, "ink", END),
    ]
    for number, token in enumerate(step.emitted):
        lines += _box(x + 14 + BOX_W / 2 + (BOX_W + 8) * number, TEXT_Y, step.words[token], "emitted", "accept")
    x += 14 + (BOX_W + 8) * len(step.emitted)
    return [*lines, text(x + 6, TEXT_Y + 5, f"{len(step.emitted)} tokens, one step", 14, "accept", BOLD)]


def _legend(step: Step) -> list[str]:
    """What the tints and outlines mean."""
    both = len(set(step.parts[0]).intersection(step.parts[1]))
    sample = ink.box(33, LEGEND_Y - 4, 26, 18, "paper", "accept", 2)
    entries = [
        (165, ink.box(33, LEGEND_Y - 4, 26, 18, "rank0"), f"rank 0: {len(step.parts[0])} rows"),
        (165, ink.box(33, LEGEND_Y - 4, 26, 18, "rank1"), f"rank 1: {len(step.parts[1])} rows"),
        (175, tint(ink.box(33, LEGEND_Y - 4, 26, 18, "paper")), f"both ranks: {both} rows"),
        (240, ink.box(33, LEGEND_Y - 4, 26, 18, "paper", "accept", 3), "accepted: the model agrees"),
        (200, dashed([sample])[0], "the model's own next token"),
    ]
    lines, x = [], 0
    for width, shape, meaning in entries:
        lines.append(f'<g transform="translate({x} 0)">{shape}{text(54, LEGEND_Y + 1, meaning, 13, "faint")}</g>')
        x += width
    return lines
