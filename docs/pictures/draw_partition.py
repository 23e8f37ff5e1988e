"""How two ranks share one step: the part of the tree that each computes, the exchange, and the walk that both make."""

from __future__ import annotations

from docs.pictures import ink
from docs.pictures.draw_step import ROOT_X, place
from docs.pictures.ink import BOLD, MIDDLE, text
from docs.pictures.story import Step, chosen_step

WIDTH, HEIGHT = 1020, 560
PANELS = ((40, 100, "rank0"), (550, 100, "rank1"))
MERGED = (295, 362)
SCALE_X, SCALE_Y, RADIUS = 0.53, 0.45, 9
TITLE = "Two ranks compute parts of one tree, exchange the targets of their rows, and make the same walk"


def draw() -> str:
    step = chosen_step()
    shapes = []
    for rank, (x, y, tint) in enumerate(PANELS):
        part = step.parts[rank]
        head = f"Rank {rank} computes {len(part)} of {len(step.tree)} rows"
        shapes += [text(x, 40, head, 16, "ink", BOLD), text(x, 60, "with its own copy of the model", 13, "faint")]
        shapes += _tree(step, x + 10, y, {row: tint for row in part}, ())
        shapes.append(ink.arrow(x + 215, 240, x + 215, 272))
    shapes += [
        ink.box(WIDTH / 2, 292, 700, 38, "emitted", "accept"),
        text(
            WIDTH / 2,
            297,
            "One exchange: the targets of its rows, an integer each, from every rank to every rank",
            14,
            "ink",
            MIDDLE,
        ),
        ink.arrow(WIDTH / 2, 312, WIDTH / 2, 342),
        text(20, 380, "Every rank", 16, "ink", BOLD),
        text(20, 402, "now has the target of each", 13, "faint"),
        text(20, 420, "row, makes the same walk", 13, "faint"),
        text(20, 438, "and plans the same next tree.", 13, "faint"),
    ]
    shapes += _tree(step, *MERGED, {row: "paper" for row in range(len(step.tree))}, step.accepted)
    words = " ".join(step.words[token] for token in step.emitted)
    shapes.append(
        text(MERGED[0] + 10, HEIGHT - 18, f"Emitted: “{words}”, {len(step.emitted)} tokens", 14, "accept", BOLD)
    )
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def _tree(step: Step, x: float, y: float, tints: dict[int, str], lit: tuple[int, ...] | list[int]) -> list[str]:
    """The tree as dots. tints: of the rows that are filled; the others are faint. lit: the accepted rows."""
    places = {
        row: (x + (from_left - ROOT_X) * SCALE_X, y + (from_top - 84) * SCALE_Y)
        for row, (from_left, from_top) in place(step).items()
    }
    lines, dots = [], []
    for row, (at_x, at_y) in places.items():
        if row:
            before = places[int(step.tree.parents[row])]
            look = ("accept", 3.5) if row in lit else ("edge" if row in tints else "line", 1.2)
            lines.append(ink.curve(before[0], before[1], at_x, at_y, *look))
        if row in lit:
            dots.append(ink.dot(at_x, at_y, RADIUS, "emitted", "accept", 3))
        elif row in tints:
            dots.append(ink.dot(at_x, at_y, RADIUS, tints[row]))
        else:
            dots.append(ink.dot(at_x, at_y, RADIUS - 3, "page", "line"))
    return lines + dots
