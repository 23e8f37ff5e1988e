"""Traces: what each step of a request did, for requests that ask for it.

A step is recorded in three moments: when its answers have come (who computed what, and how long it took), before the
decoder learns from them (the tree and its sources), and when its output is made. A `StepTrace` is plain data that
travels as JSON. A request that asks for no trace pays one comparison a step.

R nodes of the tree; node 0 is the root
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lp.decoder import Decoder, Described
from lp.tree import TokenTree

# How a rank is written, one character a node.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# A rank whose number has no digit.
BEYOND = "*"

OTHER = "o"  # a source that has no letter of its own

# A node's letter by the name of its source: "root", "cell" (of the window), or the name that a draft source has.
LETTERS = defaultdict(
    lambda: OTHER,
    {
        "root": "r",
        "cell": "w",
        "window": "n",
        "suffix": "s",
        "prompt": "p",
        "generated": "g",
        "shared": "h",
        "recycled": "a",
        "index": "i",
        "corpus": "c",
        "jacobi": "j",
        "grammar": "m",
        "draft_model": "d",
        "draft_ahead": "f",
        "heads": "e",
    },
)

# What each letter stands for, in words for a reader.
LEGEND = {
    "r": "root",
    "w": "window",
    "n": "n-grams of the window",
    "s": "earlier text",
    "p": "prompt",
    "g": "generated text",
    "h": "other requests",
    "a": "recycled answers",
    "i": "index of answers",
    "c": "corpus of texts",
    "j": "Jacobi guesses",
    "m": "grammar",
    "d": "second model",
    "f": "second model, on a rank that drafts ahead",
    "e": "heads of the model",
    OTHER: "another source",
}


class StepTrace(NamedTuple):
    """What one step of one request did.

    step: its number, from 0. tokens: [R] of the tree, without the tokens of the sequence that were only computed.
    parents: [R] the node above each; -1 for the root. sources: [R] a letter each, see LEGEND. ranks: [R] a digit each
    of DIGITS: the rank that computed the node; the first of its group under tensor and pipeline parallelism. accepted:
    the nodes of the accepted path, from the root's child on. emitted: the tokens that the step added to the text.
    rows: of the whole step, prompts and the trees of other requests included, on the rank with the most. sequences:
    requests that took part in the step. step_ms: from its start to its answers. expected_ms: the same, by the step-time
    curve; None if there is none. window: columns and levels; None without one. pool: n-grams in the pool; None without
    one. omitted: nodes that were left out (see `within`). drafting: a digit for each rank that drafted ahead of the
    step. drafted_for: the ends of the step that they drafted for: a rank, a node, and the token after it; None if
    nobody drafted ahead. came_true: the number of the end that came true; None if it is not there.
    """

    step: int
    tokens: list[int]
    parents: list[int]
    sources: str
    ranks: str
    accepted: list[int]
    emitted: list[int]
    rows: int
    sequences: int
    step_ms: float
    expected_ms: float | None = None
    window: list[int] | None = None
    pool: int | None = None
    omitted: int = 0
    drafting: str = ""
    drafted_for: list[list[int]] | None = None
    came_true: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values for `from_dict`."""
        return self._asdict()

    @staticmethod
    def from_dict(values: dict[str, Any]) -> StepTrace:
        return StepTrace(**values)

    def within(self, num_bytes: int) -> StepTrace:
        """This trace with as many nodes as fit so many bytes of JSON: ends that did not come true are left out, and
        then the deepest nodes that were not accepted.

        The accepted path and what was emitted always stay, so a step that accepts very many tokens may be larger.
        """
        excess = len(json.dumps(self._asdict(), separators=(",", ":"))) - num_bytes
        if excess <= 0:
            return self
        if self.drafted_for is not None and len(self.drafted_for) > (self.came_true is not None):
            return self._with_ends([] if self.came_true is None else [self.came_true]).within(num_bytes)
        excess += 2  # `omitted` gets more digits
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        kept = {0, *self.accepted}
        others = sorted((row for row in range(len(depths)) if row not in kept), key=depths.__getitem__)
        while others and excess > 0:
            row = others.pop()
            excess -= len(str(self.tokens[row])) + len(str(self.parents[row])) + 4
        return self._part(sorted([*kept, *others]))

    def _with_ends(self, numbers: list[int]) -> StepTrace:
        """Only some of the ends that were drafted for, with the one that came true."""
        assert self.drafted_for is not None
        came_true = None if self.came_true is None else numbers.index(self.came_true)
        return self._replace(drafted_for=[self.drafted_for[number] for number in numbers], came_true=came_true)

    def _part(self, rows: Sequence[int]) -> StepTrace:
        """The nodes `rows`, ascending, with all ancestors of each."""
        places = {row: place for place, row in enumerate(rows)}
        return self._replace(
            tokens=[self.tokens[row] for row in rows],
            parents=[places.get(self.parents[row], -1) for row in rows],
            sources="".join([self.sources[row] for row in rows]),
            ranks="".join([self.ranks[row] for row in rows]),
            accepted=[places[row] for row in self.accepted],
            drafted_for=self.drafted_for and [[rank, places[row], token] for rank, row, token in self.drafted_for],
            omitted=self.omitted + len(self.tokens) - len(rows),
        )

    def among(self, members: Sequence[int]) -> StepTrace:
        """The same with other numbers of ranks. members: the number of each rank that this trace has."""
        digits = {ord(DIGITS[place]): digit_of(rank) for place, rank in enumerate(members[: len(DIGITS)])}
        ends = self.drafted_for and [[members[rank], row, token] for rank, row, token in self.drafted_for]
        drafting = self.drafting.translate(digits)
        return self._replace(ranks=self.ranks.translate(digits), drafting=drafting, drafted_for=ends)


def digit_of(rank: int) -> str:
    """How a rank is written."""
    return DIGITS[rank] if rank < len(DIGITS) else BEYOND


class BatchFigures(NamedTuple):
    """What a batch of steps took. rows, sequences: see StepTrace. seconds: from its start to its answers. expected_s:
    by the step-time curve; None if there is none.
    """

    rows: int
    sequences: int
    seconds: float
    expected_s: float | None


@dataclass(slots=True)
class RecordedStep:
    """A step that has been verified, of which no trace has been made yet. ranks: see StepTrace; None is rank 0. rows:
    for each accepted token the row whose target it is. Where rows have the same path of tokens, such as a window cell
    and a draft, these may change from one branch to the other, so a trace shows the branch of the last one. drafting:
    the ranks that drafted ahead of it.
    """

    tree: TokenTree
    described: Described
    figures: BatchFigures
    ranks: str | None
    rows: list[int]
    emitted: list[int]
    drafting: Sequence[int] = ()

    def trace(self, step: int) -> StepTrace:
        """step: its number."""
        num_rows, num_sequences, seconds, expected_s = self.figures
        sources, window, pool, ends = self.described
        path = self.tree.path(self.rows[: len(self.emitted) + 1][-1])
        ends = ends if self.drafting else ()  # a runner may not say who drafted
        drafted_for = [[self.drafting[end.place], end.row, end.token] for end in ends]
        is_end = [(end.row, [end.token]) == (path[-1], self.emitted[-1:]) for end in ends]
        return StepTrace(
            step,
            *self.tree.as_lists(),
            "".join(map(LETTERS.__getitem__, sources)),
            self.ranks or "0" * len(self.tree),
            path[1:],
            self.emitted,
            num_rows,
            num_sequences,
            int(1e5 * seconds + 0.5) / 100,  # as `round` takes a hundred times as long
            None if expected_s is None else int(1e5 * expected_s + 0.5) / 100,
            window and [*window],
            pool,
            drafting="".join(map(digit_of, self.drafting)),
            drafted_for=drafted_for if self.drafting else None,
            came_true=is_end.index(True) if True in is_end else None,
        )


class TraceRecorder:
    """Records one request's steps, in their order.

    figures: what the batch of the next step took. ranks, drafting: see RecordedStep. All are set before the step is
    committed.
    """

    def __init__(self) -> None:
        self.figures = BatchFigures(0, 0, 0.0, None)
        self.ranks: str | None = None
        self.drafting: Sequence[int] = ()
        self._tree: TokenTree
        self._described: Described

    def note_tree(self, tree: TokenTree, decoder: Decoder) -> None:
        """Notes what the decoder has planned, before it learns from the answers."""
        self._tree, self._described = tree, decoder.describe()

    def committed(self, rows: list[int], emitted: list[int]) -> RecordedStep:
        """rows: for each accepted token the row whose target it is. emitted: those of the tokens that count."""
        return RecordedStep(self._tree, self._described, self.figures, self.ranks, rows, emitted, self.drafting)
