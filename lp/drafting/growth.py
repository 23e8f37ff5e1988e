"""Grows a tree of drafts best first: always the node that is likeliest to be reached, until more would not pay.

A node's probability is its parent's times that of the candidate's kind. Nodes come in the order of their probability,
so the number of nodes that gives most expected tokens a second is found on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from lp.drafting.pace import Pace

LEAST = 1e-3
"""A node less likely than this is not worth its bookkeeping."""

LEAST_CONTEXT = 2
"""Tokens that a context comes to have, even under a prompt of one."""

Proposals = list[tuple[int, list[int]]]
"""What may follow a context: ranked candidates, and the kind of the first of them. The next has the next kind."""


@dataclass
class Growth:
    """Draft nodes under a root, which is row 0.

    tokens, parents, kinds: of each row. depths: of each row. proposals: of each row that was asked about.
    expected: tokens that a step with these nodes will yield.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [-1])
    proposals: list[Proposals] = field(default_factory=list)
    expected: float = 1.0

    def cut(self, num_rows: int) -> None:
        """Drops the least likely nodes. What was proposed for the rest is still known."""
        for rows in (self.tokens, self.parents, self.depths, self.kinds):
            del rows[num_rows:]


def grow(
    context: tuple[int, ...],
    propose: Callable[[tuple[int, ...], int], Proposals],
    probabilities: list[float],
    max_depth: int,
    pace: Pace,
    other_rows: int,
) -> Growth:
    """Grows a tree under the last token of `context`.

    propose: what may follow a context, at a depth below the root. max_depth: of nodes. other_rows: of the step, beside
    the root and the drafts.
    """
    growth = Growth([context[-1]])
    tokens, parents, depths, kinds = growth.tokens, growth.parents, growth.depths, growth.kinds
    contexts, reached = [context], [1.0]
    longest = max(len(context), LEAST_CONTEXT)
    taken: set[tuple[int, int]] = set()
    heap: list[tuple[float, int, int, int, list[int], int]] = []
    serial = num_rows = 0
    most_rows = pace.most_rows - other_rows
    best_speed, best_rows, expected = 1.0 / pace.seconds[1 + other_rows], 1, 1.0

    def expand(row: int) -> None:
        nonlocal serial
        proposals = propose(contexts[row], depths[row])
        growth.proposals.append(proposals)
        for first, candidates in proposals:
            serial += 1
            heappush(heap, (-reached[row] * probabilities[first], serial, row, first, candidates, 0))

    expand(0)
    while heap and max_depth:
        negative, _, parent, first, candidates, rank = heappop(heap)
        probability = -negative
        num_rows = len(tokens)
        if num_rows >= most_rows or probability < max(LEAST, best_speed * pace.slopes[num_rows + other_rows]):
            break
        if rank + 1 < len(candidates):
            serial += 1
            odds = -reached[parent] * probabilities[first + rank + 1]
            heappush(heap, (odds, serial, parent, first, candidates, rank + 1))
        token = candidates[rank]
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        kinds.append(first + rank)
        contexts.append((*contexts[parent], token)[-longest:])
        reached.append(probability)
        expected += probability
        if (speed := expected / pace.seconds[num_rows + 1 + other_rows]) >= best_speed:
            best_speed, best_rows, growth.expected = speed, num_rows + 1, expected
        if depths[-1] < max_depth:
            expand(num_rows)
        else:
            growth.proposals.append([])
    growth.cut(best_rows)
    return growth
