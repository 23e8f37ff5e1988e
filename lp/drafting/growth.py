"""Grows a tree of drafts best first: always the node that is likeliest to be reached, until more would not pay.

A node's probability is its parent's times that of the candidate's kind. Nodes come in the order of their probability,
so the number of nodes that gives most expected tokens a second is found on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from lp.drafting.base import Proposals
from lp.drafting.contexts import extend, last_token
from lp.step_cost import StepCost

LEAST = 1e-3
"""A node less likely than this is not worth its bookkeeping."""


@dataclass
class Growth:
    """Draft nodes under a root, which is row 0.

    tokens, parents, depths, kinds: of each row. proposals: of each row that was asked about.
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


class Frontier:
    """What may become a node next. Of a proposal the best candidate waits in line, and the next takes its place."""

    def __init__(self, probabilities: list[float]):
        """probabilities: of kinds."""
        self._probabilities = probabilities
        self._heap: list[tuple[float, int, int, float, int, Sequence[int], int]] = []
        self._serial = 0
        """Of equally likely candidates the first that came goes first."""

    def add(self, row: int, reached: float, proposals: Proposals) -> None:
        """Candidates for what follows a row that is reached with some probability."""
        for first, candidates in proposals:
            odds = reached * self._probabilities[first]
            if odds >= LEAST:
                self._serial += 1
                heappush(self._heap, (-odds, self._serial, row, reached, first, candidates, 0))

    def __iter__(self) -> Iterator[tuple[float, int, int, int]]:
        """Probability, parent, kind and token, likeliest first among what was added by then."""
        heap, probabilities = self._heap, self._probabilities
        while heap:
            negative, _, row, reached, kind, candidates, rank = heap[0]
            token = candidates[rank]
            rank += 1
            if rank < len(candidates) and (odds := reached * probabilities[kind + 1]) >= LEAST:
                self._serial += 1
                heapreplace(heap, (-odds, self._serial, row, reached, kind + 1, candidates, rank))
            else:
                heappop(heap)
            yield -negative, row, kind, token


def grow(
    context: int,
    propose: Callable[[int, int], Proposals],
    probabilities: list[float],
    max_depth: int,
    cost: StepCost,
    other_rows: int,
) -> Growth:
    """Grows a tree under the last token of `context`.

    propose: what may follow a context, at a depth below the root. max_depth: of nodes. other_rows: of the step, beside
    the root and the drafts.
    """
    growth = Growth([last_token(context)])
    tokens, parents, depths, kinds = growth.tokens, growth.parents, growth.depths, growth.kinds
    contexts = [context]
    taken: set[tuple[int, int]] = set()
    frontier = Frontier(probabilities)
    growth.proposals.append(propose(context, 0))
    if max_depth:
        frontier.add(0, 1.0, growth.proposals[0])
    most_rows, largest_part = cost.most_rows - other_rows, cost.largest_part(1 + other_rows, 0)
    best_speed, best_rows, expected, deepest = 1.0 / cost.seconds[largest_part], 1, 1.0, 0
    for probability, parent, kind, token in frontier:
        row = len(tokens)
        if row >= most_rows or probability < best_speed * cost.slopes[largest_part] / cost.num_parts:
            break
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        context, depth = extend(contexts[parent], token), depths[parent] + 1
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
        kinds.append(kind)
        contexts.append(context)
        expected += probability
        deepest = max(deepest, depth)
        largest_part = cost.largest_part(row + 1 + other_rows, deepest)
        if (speed := expected / cost.seconds[largest_part]) >= best_speed:
            best_speed, best_rows, growth.expected = speed, row + 1, expected
        proposals = propose(context, depth) if depth < max_depth else []
        growth.proposals.append(proposals)
        frontier.add(row, probability, proposals)
    growth.cut(best_rows)
    return growth
