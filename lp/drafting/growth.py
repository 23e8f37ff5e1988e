"""Grows a tree of drafts best first: it adds the likeliest node next, until more nodes would not pay off.

A node's probability is its parent's times the probability of the candidate's kind. Nodes are added in the order of
their probability, so growth passes the number of nodes with the most expected tokens per second, and is cut to it.

    R rows of the grown tree, with the root as row 0; A rows that sources were asked about, those cut off included;
    N kinds of candidates
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from lp.drafting.base import Proposals
from lp.drafting.contexts import extend, last_token
from lp.step_cost import StepCost

# Less likely nodes are not worth the work of keeping track of them.
LEAST_PROBABILITY = 1e-3


@dataclass
class Growth:
    """Draft nodes under a root, which is row 0.

    tokens: [R] token ids. parents: [R] row of each parent, -1 for the root. depths: [R] distance from the root.
    kinds: [R] kind of each candidate, -1 for the root. proposals: [A] what the sources proposed to follow each row.
    expected: number of tokens that a step with these nodes is expected to yield. best_speed: the most tokens per second
    of any number of nodes if no rank had to catch up.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [-1])
    proposals: list[Proposals] = field(default_factory=list)
    expected: float = 1.0
    best_speed: float = 0.0

    def cut(self, num_rows: int) -> None:
        """Drops the rows from `num_rows` on, which are the least likely ones. `proposals` keeps all its entries."""
        for rows in (self.tokens, self.parents, self.depths, self.kinds):
            del rows[num_rows:]


class Frontier:
    """The candidates that may become nodes next.

    Each list of candidates has one entry in the heap: the best of its candidates that has not been taken yet.
    """

    def __init__(self, probabilities: Sequence[float]):
        """probabilities: [N] probability of each kind."""
        self._probabilities = probabilities
        self._heap: list[tuple[float, int, int, float, int, Sequence[int], int]] = []
        # Numbers the entries, so that equally likely candidates come out in the order in which they were added.
        self._serial = 0

    def add(self, row: int, reached: float, proposals: Proposals) -> None:
        """Adds the candidates that may follow a row. reached: the row's probability."""
        for first, candidates in proposals:
            odds = reached * self._probabilities[first]
            if odds >= LEAST_PROBABILITY:
                self._serial += 1
                heappush(self._heap, (-odds, self._serial, row, reached, first, candidates, 0))

    def __iter__(self) -> Iterator[tuple[float, int, int, int]]:
        """Yields probability, parent, kind and token of the likeliest candidate; more may be added in between."""
        heap, probabilities = self._heap, self._probabilities
        while heap:
            negative, _, row, reached, kind, candidates, rank = heap[0]
            token = candidates[rank]
            rank += 1
            if rank < len(candidates) and (odds := reached * probabilities[kind + 1]) >= LEAST_PROBABILITY:
                self._serial += 1
                heapreplace(heap, (-odds, self._serial, row, reached, kind + 1, candidates, rank))
            else:
                heappop(heap)
            yield -negative, row, kind, token


def grow(
    context: int,
    propose: Callable[[int, int], Proposals],
    probabilities: Sequence[float],
    max_depth: int,
    cost: StepCost,
    other_rows: int,
    limit_s: float = math.inf,
    catch_up_s: float = 0.0,
) -> Growth:
    """Grows a tree under the last token of `context`.

    propose: tells what may follow a context that ends at a depth below the root. probabilities: [N] probability of each
    kind. max_depth: greatest depth of a node. cost: seconds of a step by its rows. other_rows: rows of the step besides
    the root and the drafts. limit_s: most seconds that the step may take. catch_up_s: see StepCost.
    """
    growth = Growth([last_token(context)])
    tokens, parents, depths, kinds = growth.tokens, growth.parents, growth.depths, growth.kinds
    contexts = [context]
    taken: set[tuple[int, int]] = set()
    frontier = Frontier(probabilities)
    growth.proposals.append(propose(context, 0))
    if max_depth:
        frontier.add(0, 1.0, growth.proposals[0])
    most_rows = cost.most_rows - other_rows
    best_speed, best_rows, expected, deepest = 1.0 / cost.step_s(1 + other_rows, 0, catch_up_s), 1, 1.0, 0
    for probability, parent, kind, token in frontier:
        row = len(tokens)
        if row >= most_rows or probability < best_speed * cost.row_s(row + other_rows, deepest):
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
        seconds = cost.step_s(row + 1 + other_rows, deepest, catch_up_s)
        if seconds > limit_s:
            break
        if (speed := expected / seconds) >= best_speed:
            best_speed, best_rows, growth.expected = speed, row + 1, expected
        if catch_up_s:
            growth.best_speed = max(growth.best_speed, expected / cost.step_s(row + 1 + other_rows, deepest))
        proposals = propose(context, depth) if depth < max_depth else []
        growth.proposals.append(proposals)
        frontier.add(row, probability, proposals)
    growth.cut(best_rows)
    growth.best_speed = max(growth.best_speed, best_speed)
    return growth
