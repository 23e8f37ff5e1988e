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

from lp.drafting.account import LEAST_PROBABILITY
from lp.drafting.ngrams import Proposals, extend, last_token
from lp.step_cost import StepCost

# Tells what may follow a context that ends at a depth below the root.
Propose = Callable[[int, int], Proposals]


@dataclass
class Growth:
    """Draft nodes under a root, which is row 0.

    tokens: [R] token ids. parents: [R] row of each parent, -1 for the root. depths: [R] distance from the root.
    kinds: [R] kind of each candidate, -1 for the root. proposals: [A] what the sources proposed to follow each row.
    expected: number of tokens that a step with these nodes is expected to yield.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [-1])
    proposals: list[Proposals] = field(default_factory=list)
    expected: float = 1.0

    def cut(self, num_rows: int) -> None:
        """Drops the rows from `num_rows` on, which are the least likely ones. `proposals` keeps all its entries."""
        for rows in (self.tokens, self.parents, self.depths, self.kinds):
            del rows[num_rows:]

    def keep(self, kept: Sequence[int]) -> None:
        """Drops all other rows. kept: ascending, with the ancestors of each."""
        places = {row: place for place, row in enumerate(kept)}
        self.parents = [places.get(self.parents[row], -1) for row in kept]
        self.tokens = [self.tokens[row] for row in kept]
        self.depths = [self.depths[row] for row in kept]
        self.kinds = [self.kinds[row] for row in kept]
        self.proposals = [self.proposals[row] for row in kept]


class Frontier:
    """The candidates that may become nodes next.

    Each list of candidates has one entry in the heap: the best of its candidates that has not been taken yet.
    """

    def __init__(self, probabilities: Sequence[float], least: float):
        """probabilities: [N] probability of each kind. least: the least probability of a candidate that may become a
        node.
        """
        self._probabilities = probabilities
        self._least = least
        self._heap: list[tuple[float, int, int, float, int, Sequence[int], int]] = []
        # Numbers the entries, so that equally likely candidates come out in the order in which they were added.
        self._serial = 0

    def add(self, row: int, reached: float, proposals: Proposals) -> None:
        """Adds the candidates that may follow a row. reached: the row's probability."""
        for first, candidates in proposals:
            odds = reached * self._probabilities[first]
            if odds >= self._least:
                self._serial += 1
                heappush(self._heap, (-odds, self._serial, row, reached, first, candidates, 0))

    def __iter__(self) -> Iterator[tuple[float, int, int, int]]:
        """Yields probability, parent, kind and token of the likeliest candidate; more may be added in between."""
        heap, probabilities, least = self._heap, self._probabilities, self._least
        while heap:
            negative, _, row, reached, kind, candidates, rank = heap[0]
            token = candidates[rank]
            rank += 1
            if rank < len(candidates) and (odds := reached * probabilities[kind + 1]) >= least:
                self._serial += 1
                heapreplace(heap, (-odds, self._serial, row, reached, kind + 1, candidates, rank))
            else:
                heappop(heap)
            yield -negative, row, kind, token


class Growing:
    """A tree while it grows.

    growth: what there is of it. candidates: those that may become nodes next, the likeliest first.
    """

    def __init__(self, context: int, propose: Propose, probabilities: Sequence[float], max_depth: int, least: float):
        """least: the least probability of a node. The others: see `grow`."""
        self.growth = Growth([last_token(context)])
        self.candidates = Frontier(probabilities, least)
        self._propose, self._max_depth = propose, max_depth
        self._contexts = [context]
        self._taken: set[tuple[int, int]] = set()
        self.growth.proposals.append(propose(context, 0))  # learnt from even if no node may follow
        if max_depth:
            self.candidates.add(0, 1.0, self.growth.proposals[0])

    def add(self, parent: int, kind: int, token: int) -> bool:
        """Adds a candidate as a node. Returns False if there is a node for the same token."""
        if (parent, token) in self._taken:
            return False
        self._taken.add((parent, token))
        growth = self.growth
        growth.tokens.append(token)
        growth.parents.append(parent)
        growth.depths.append(growth.depths[parent] + 1)
        growth.kinds.append(kind)
        self._contexts.append(extend(self._contexts[parent], token))
        return True

    def ask(self, probability: float) -> None:
        """Asks what may follow the node added last. probability: the node's."""
        depth, row = self.growth.depths[-1], len(self.growth.tokens) - 1
        proposals = self._propose(self._contexts[-1], depth) if depth < self._max_depth else []
        self.growth.proposals.append(proposals)
        self.candidates.add(row, probability, proposals)


def grow(
    context: int,
    propose: Propose,
    probabilities: Sequence[float],
    max_depth: int,
    cost: StepCost,
    other_rows: int,
    limit_s: float = math.inf,
) -> Growth:
    """Grows a tree under the last token of `context`.

    propose: tells what may follow a context that ends at a depth below the root. probabilities: [N] probability of each
    kind. max_depth: greatest depth of a node. cost: seconds of a step by its rows. other_rows: rows of the step besides
    the root and the drafts. limit_s: most seconds that the step may take.
    """
    growing = Growing(context, propose, probabilities, max_depth, LEAST_PROBABILITY)
    growth = growing.growth
    most_rows = cost.most_rows - other_rows
    best_speed, best_rows, expected, deepest = 1.0 / cost.step_s(1 + other_rows, 0), 1, 1.0, 0
    for probability, parent, kind, token in growing.candidates:
        row = len(growth.tokens)
        if row >= most_rows or probability < best_speed * cost.row_s(row + other_rows, deepest):
            break
        if not growing.add(parent, kind, token):
            continue
        expected += probability
        deepest = max(deepest, growth.depths[row])
        seconds = cost.step_s(row + 1 + other_rows, deepest)
        if seconds > limit_s:
            break
        if (speed := expected / seconds) >= best_speed:
            best_speed, best_rows, growth.expected = speed, row + 1, expected
        growing.ask(probability)
    growth.cut(best_rows)
    return growth


def grow_offer(
    context: int,
    propose: Propose,
    probabilities: Sequence[float],
    max_depth: int,
    most_rows: int,
    least: float,
) -> tuple[Growth, list[float]]:
    """Grows a tree whose size is decided later, together with the trees of other sequences.

    most_rows: of the root and the nodes. least: the least probability of a node. The others: see `grow`. Returns the
    tree and the probability of each node.
    """
    growing, odds = Growing(context, propose, probabilities, max_depth, max(least, LEAST_PROBABILITY)), list[float]()
    if most_rows <= 1:
        return growing.growth, odds
    for probability, parent, kind, token in growing.candidates:
        if not growing.add(parent, kind, token):
            continue
        odds.append(probability)
        growing.ask(probability)
        if len(odds) + 1 >= most_rows:
            break
    return growing.growth, odds
