"""One tree of a second model's drafts while it grows, best first, in rounds of one forward each.

A round asks for what follows the likeliest nodes. It is worth its time if it is expected to add more tokens than are
decoded in this time on average (`pace`), or in this step, if that is faster. So a step whose other drafts are poor is
left soon for the next ones. No decision depends on a clock or on a rank.

The tree may begin with drafts of other sources. Then a round is worth what they leave open, and a token that is there
already gets no node of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lp.methods.draft_model.calibration import AGREED, ALONE, RIVALLED, Calibration
from lp.model.extensions import ROUND_ROWS
from lp.tree import PREFIX, TokenTree

# The most nodes whose continuations one round asks for, and how much less likely than the best one they may be.
MOST_AT_ONCE, LEAST_SHARE = 4, 0.3


class Candidates(NamedTuple):
    """What the second model proposes after a node.

    tokens: best first. priors: for each, about the probability that it is the target, as far as the second model knows.
    distribution: tensor [V] from which the tokens were drawn; None if they were not.
    """

    tokens: list[int]
    priors: list[float]
    distribution: Any = None


@dataclass
class Node:
    """A draft, or the root. parent: its number; -1 for the root. odds: that its path is accepted. beside: for each of
    its candidates, what other sources had proposed there (see Calibration).
    """

    token: int
    parent: int
    depth: int
    odds: float
    children: list[int] = field(default_factory=list)
    candidates: Candidates | None = None
    beside: list[int] = field(default_factory=list)

    def copy(self) -> Node:
        return replace(self, children=[*self.children], beside=[*self.beside])


def cost_at(costs: Sequence[float], num_rows: int, of_one: float) -> float:
    """What a round of so many rows costs. costs: of rounds of ROUND_ROWS; without them, every round costs `of_one`."""
    if not costs or num_rows == 1:
        return of_one
    above = min(bisect_left(ROUND_ROWS, num_rows), len(ROUND_ROWS) - 1)
    (few, many), (cheap, dear) = ROUND_ROWS[above - 1 : above + 1], costs[above - 1 : above + 1]
    return cheap + (dear - cheap) * (num_rows - few) / (many - few)


def num_shared(lines: Sequence[Sequence[int]]) -> int:
    """How many of the first nodes are the same in all lines, which begin with the root."""
    shared = 1
    while all(len(line) > shared and line[shared] == lines[0][shared] for line in lines):
        shared += 1
    return shared


class Growth:
    """Nodes in the order in which they came: parents before children; node 0 is the root.

    is_chain: whether each node gets one child, whatever it is worth, as rejection sampling needs: what is drafted
    further down may depend on a draft, but whether the draft is used must not.
    """

    def __init__(
        self,
        root: int,
        calibration: Calibration,
        max_depth: int,
        most_drafts: int,
        round_cost: float,
        is_chain: bool,
        costs: Sequence[float] = (),
    ):
        """most_drafts: nodes that the step can take. round_cost: of a round of one row, in plain steps; 0 grows the
        tree as far as it can be. costs: of rounds of ROUND_ROWS; none if all of them cost the same.
        """
        self.nodes = [Node(root, -1, 0, 1.0)]
        self.calibration = calibration
        self.max_depth, self.most_drafts = max_depth, most_drafts
        self.round_cost, self.costs, self.is_chain = round_cost, costs, is_chain
        # Tokens of the text that the first round computes as well.
        self.num_unread = 0
        # The rounds so far, and what they cost in plain steps.
        self.num_rounds, self.spent = 0, 0.0
        # Tokens that are decoded in the time of a plain step, on average.
        self.pace = 1.0
        # Nodes whose keys and values the second model has, and by how much costs count less in a trial.
        self._computed, self._discount = set[int](), 1.0

    def adopt(self, tokens: Sequence[int], parents: Sequence[int], odds: Sequence[float]) -> None:
        """Begins with drafts of other sources, whose numbers go on from the root's. parents: numbers."""
        for token, parent, one in zip(tokens, parents, odds, strict=True):
            self._hang(token, parent, one)

    def _hang(self, token: int, parent: int, odds: float) -> None:
        above = self.nodes[parent]
        above.children.append(len(self.nodes))
        self.nodes.append(Node(token, parent, above.depth + 1, odds))

    @property
    def has_candidates(self) -> bool:
        """Whether the second model was asked for any of it."""
        return any(node.candidates is not None for node in self.nodes)

    def best(self) -> list[int]:
        """The drafts that the step may take, likeliest first; parents come before their children."""
        order = sorted(range(1, len(self.nodes)), key=lambda number: -self.nodes[number].odds)  # stable
        return order[: self.most_drafts]

    def choose(self) -> list[int]:
        """The nodes whose continuations the next round asks for; none if the tree is grown."""
        best = self.best()
        open_nodes = [number for number in (0, *best) if self.may_ask(number)]
        if not open_nodes or (len(best) >= self.most_drafts and self.is_chain):
            return []
        open_nodes.sort(key=self.left_open, reverse=True)  # stable
        least = LEAST_SHARE * self.left_open(open_nodes[0])
        chosen = [number for number in open_nodes[:MOST_AT_ONCE] if self.left_open(number) >= least]
        return sorted(chosen if self.is_chain or not self.round_cost else self._that_pay(chosen, best))

    def left_open(self, number: int) -> float:
        """The probability that a node's path is accepted and that what follows it is none of its children."""
        node = self.nodes[number]
        return max(0.0, node.odds - sum(self.nodes[child].odds for child in node.children))

    def may_ask(self, number: int) -> bool:
        """Whether the second model may be asked what follows a node."""
        node = self.nodes[number]
        return node.candidates is None and node.depth < self.max_depth

    def _that_pay(self, open_nodes: Sequence[int], best: Sequence[int]) -> list[int]:
        """The first of these nodes, as many as gain most over what their round costs; none if nothing is gained."""
        expected = 1.0 + sum(self.nodes[number].odds for number in best)
        pace = max(self.pace, expected / (1.0 + self.spent))
        tokens, most, count = 0.0, 0.0, 0
        for number, node in enumerate(open_nodes, start=1):
            tokens += self.calibration.rate * self.left_open(node)
            gain = tokens - pace * self._discount * self._cost_of(open_nodes[:number])
            if gain > most:
                most, count = gain, number
        return list(open_nodes[:count])

    def _above(self, chosen: Sequence[int]) -> set[int]:
        """The chosen nodes and all nodes above them."""
        return {number for node in chosen for number in self.lineage(node)}

    def _cost_of(self, chosen: Sequence[int]) -> float:
        """Returns what a round costs that asks for what follows these nodes, in plain steps."""
        lines = [self.lineage(number) for number in chosen]
        shared = num_shared(lines)
        below = {number for line in lines for number in line[shared:]}
        num_rows = 1 + len(below) + len(set(lines[0][: shared - 1]) - self._computed)
        if not self.num_rounds:
            num_rows += self.num_unread
        return cost_at(self.costs, num_rows, self.round_cost)

    def took_round(self, chosen: Sequence[int]) -> None:
        """Notes a round before its candidates are added."""
        self.num_rounds += 1
        self.spent += self._cost_of(chosen)
        self._computed = self._above(chosen)

    def entice(self) -> bool:
        """Has costs count less, so that a round is asked for. Returns whether that is so."""
        pace = max(self.pace, 1.0 + sum(node.odds for node in self.nodes[1:]))
        enticing = self.calibration.rate * self.left_open(0) / 2
        self._discount = min(1.0, enticing / (pace * self.round_cost))
        return bool(self.choose())

    def add(self, number: int, candidates: Candidates) -> None:
        """Adds what may follow a node."""
        node = self.nodes[number]
        node.candidates = candidates
        others = {self.nodes[child].token: child for child in node.children}
        left_to_it = self.left_open(number) / node.odds if node.odds else 0.0
        left = node.odds
        for place, (token, prior) in enumerate(zip(candidates.tokens, candidates.priors, strict=True)):
            beside = ALONE if not others else AGREED if token in others else RIVALLED
            node.beside.append(beside)
            odds = 1.0 if self.is_chain else node.odds * self.calibration.odds(place, prior, beside, left_to_it)
            left -= odds
            if token not in others:
                self._hang(token, number, odds)
            elif odds > self.nodes[child := others.pop(token)].odds:
                self._change(child, odds)
        for child in others.values():  # at most one token can follow
            self._change(child, min(self.nodes[child].odds, max(0.0, left)))

    def _change(self, number: int, odds: float) -> None:
        """Gives a node other odds, and those below it in proportion."""
        node = self.nodes[number]
        factor, node.odds = odds / node.odds if node.odds else 0.0, odds
        for child in node.children:
            self._change(child, min(odds, factor * self.nodes[child].odds))

    def lineage(self, number: int) -> list[int]:
        """The nodes from the root down to this one, both included."""
        line = [number]
        while (parent := self.nodes[line[-1]].parent) >= 0:
            line.append(parent)
        return line[::-1]

    def learn(self, number: int, target: int) -> None:
        """Learns what followed a node whose path was accepted."""
        node, candidates = self.nodes[number], self.nodes[number].candidates
        if candidates is not None and not self.is_chain:
            right = candidates.tokens.index(target) if target in candidates.tokens else None
            self.calibration.learn(candidates.priors, right, node.beside)


def tree_of(growth: Growth, numbers: Sequence[int]) -> TokenTree:
    """The tree of some nodes in ascending order, the first of which is above all others."""
    places = {number: place for place, number in enumerate(numbers)}
    nodes = [growth.nodes[number] for number in numbers]
    parents = [PREFIX, *(places[node.parent] for node in nodes[1:])]
    depths = [node.depth - nodes[0].depth for node in nodes]
    return TokenTree(np.array([node.token for node in nodes]), np.array(parents), np.array(depths))
