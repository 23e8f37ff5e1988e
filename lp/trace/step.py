"""The trace of one step, as plain data that travels as JSON, and how it is cut to a size.

R nodes of the tree; node 0 is the root
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    one. omitted: nodes that were left out (see `within`).
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

    def to_dict(self) -> dict[str, Any]:
        """JSON values for `from_dict`."""
        return self._asdict()

    @staticmethod
    def from_dict(values: dict[str, Any]) -> StepTrace:
        return StepTrace(**values)

    def within(self, num_bytes: int) -> StepTrace:
        """This trace with as many nodes as fit so many bytes of JSON: the deepest that were not accepted are left out.

        The accepted path and what was emitted always stay, so a step that accepts very many tokens may be larger.
        """
        excess = len(json.dumps(self._asdict(), separators=(",", ":"))) - num_bytes
        if excess <= 0:
            return self
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

    def _part(self, rows: Sequence[int]) -> StepTrace:
        """The nodes `rows`, ascending, with all ancestors of each."""
        places = {row: place for place, row in enumerate(rows)}
        return self._replace(
            tokens=[self.tokens[row] for row in rows],
            parents=[places.get(self.parents[row], -1) for row in rows],
            sources="".join([self.sources[row] for row in rows]),
            ranks="".join([self.ranks[row] for row in rows]),
            accepted=[places[row] for row in self.accepted],
            omitted=self.omitted + len(self.tokens) - len(rows),
        )

    def among(self, members: Sequence[int]) -> StepTrace:
        """The same with other numbers of ranks. members: the number of each rank that this trace has."""
        digits = {ord(DIGITS[place]): digit_of(rank) for place, rank in enumerate(members[: len(DIGITS)])}
        return self._replace(ranks=self.ranks.translate(digits))


def digit_of(rank: int) -> str:
    """How a rank is written."""
    return DIGITS[rank] if rank < len(DIGITS) else BEYOND
