"""A step of four requests on two ranks: three trees and a chunk of a prompt, shared by the project's own code."""

from __future__ import annotations

from dataclasses import dataclass

from docs.pictures import ink
from docs.pictures.ink import BOLD, MIDDLE, text
from docs.pictures.story import steps
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.tree import NO_ROWS, TokenTree
from parallel.runners.sharing import Sharing

WIDTH, HEIGHT = 1020, 430
COLUMN, CELL, GAP = 245, 17, 3
TINTS = ("rank0", "rank1", "rank2", "emitted")
LENGTHS, CHUNK = (40, 52, 31), 14
TITLE = "A step of four requests: their trees and a chunk of a prompt are rows of one forward on each of two ranks"


@dataclass(frozen=True)
class Placed:
    """The batch. inputs: a step of each request. loads: rows of each rank. taken: for each request, its rows by
    rank. lacked: by request and rank, tokens that the rank lacked and computes first.
    """

    inputs: list[StepInput]
    loads: list[int]
    taken: list[dict[int, int]]
    lacked: list[dict[int, int]]


def placed() -> Placed:
    """Each rank lacks a few tokens of some request that the other has computed; request 3 begins with its prompt."""
    story = steps()
    found = [next(story) for _ in range(6)]
    drafts = [one.tree.take(range(1 + one.num_drafts)) for one in found]
    trees = [drafts[5], drafts[2], drafts[3]]
    inputs = [
        _input(str(number), length, tree) for number, (length, tree) in enumerate(zip(LENGTHS, trees, strict=True))
    ]
    inputs.append(StepInput(_sequence("3", CHUNK + 1), NO_ROWS, CHUNK))
    known = [
        [LENGTHS[0] - 1, LENGTHS[0] - 3],
        [LENGTHS[1] - 1, LENGTHS[1] - 1],
        [LENGTHS[2] - 2, LENGTHS[2] - 1],
        [0, 0],
    ]
    shares = Sharing().share(inputs, known)
    taken = [
        {**{rank: len(rows) for rank, rows in share.rows.items()}, **dict.fromkeys(share.feeds, CHUNK)}
        for share in shares
    ]
    lacked = [
        {rank: inputs[number].num_computed - known[number][rank] for rank in share.rows}
        for number, share in enumerate(shares)
    ]
    loads = [
        sum(of_ranks[rank] + lacks.get(rank, 0) for of_ranks, lacks in zip(taken, lacked, strict=True))
        for rank in range(2)
    ]
    return Placed(inputs, loads, taken, lacked)


def _sequence(name: str, num_tokens: int) -> Sequence:
    return Sequence(name, list(range(num_tokens)), num_tokens, Sampling.greedy())


def _input(name: str, num_tokens: int, tree: TokenTree) -> StepInput:
    return StepInput(_sequence(name, num_tokens), tree, num_tokens - 1)


def draw() -> str:
    batch = placed()
    shapes = [text(20, 34, "Requests", 16, "ink", BOLD)]
    for number, step in enumerate(batch.inputs):
        shapes += _request(number, step, 20 + COLUMN * number)
    shapes.append(ink.path(f"M20 246 H{WIDTH - 20}", "line", 1))
    shapes.append(text(20, 276, "One forward on each rank", 16, "ink", BOLD))
    for rank, load in enumerate(batch.loads):
        shapes += _rank(rank, load, batch, 312 + 66 * rank)
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def _request(number: int, step: StepInput, x: float) -> list[str]:
    """A request's tree, or the chunk of its prompt as a row of squares."""
    tint = TINTS[number]
    if not len(step.tree):
        head, detail = f"Request {number + 1} begins", f"{step.num_computed} tokens of its prompt"
        body = [ink.box(x + 12 + 20 * (k % 7), 120 + 20 * (k // 7), CELL, CELL, tint) for k in range(step.num_computed)]
    else:
        head, detail = f"Request {number + 1} decodes", f"a tree of {len(step.tree)} rows"
        body = _tree(step.tree, x + 14, 100, tint)
    return [text(x, 64, head, 14), text(x, 82, detail, 12.5, "faint"), *body]


def _tree(tree: TokenTree, x: float, y: float, tint: str) -> list[str]:
    places: dict[int, tuple[float, float]] = {}
    line = 0
    for row in range(len(tree) - 1, -1, -1):
        children = tree.children[row]
        if children:
            from_top = sum(places[child][1] for child in children) / len(children)
        else:
            from_top, line = y + 34 * line, line + 1
        places[row] = (x + 46 * int(tree.depths[row]), from_top)
    edges = [ink.curve(*places[int(tree.parents[row])], *places[row], "edge") for row in range(1, len(tree))]
    return [*edges, *(ink.dot(*places[row], 10, tint) for row in range(len(tree)))]


def _rank(rank: int, load: int, batch: Placed, y: float) -> list[str]:
    """The rows of a rank's forward as a strip of squares, request by request."""
    shapes = [text(20, y + 6, f"Rank {rank}", 14, "ink", BOLD), text(72, y + 6, f"{load} rows", 13, "faint")]
    x = 160.0
    for number, of_ranks in enumerate(batch.taken):
        if rows := of_ranks.get(rank, 0):
            lacked = batch.lacked[number].get(rank, 0)
            for place in range(lacked + rows):
                shapes.append(ink.box(x + CELL / 2, y, CELL, CELL + 8, "paper" if place < lacked else TINTS[number]))
                x += CELL + GAP
            middle = x - (lacked + rows) * (CELL + GAP) / 2
            words = f"request {number + 1}" + (f" ({lacked} lacked)" if lacked else "")
            shapes.append(text(middle, y + 32, words, 12, "faint", MIDDLE))
            x += 14
    return shapes
