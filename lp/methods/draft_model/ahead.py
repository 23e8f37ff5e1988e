"""Drafts for the step after the one that is computed now, made by ranks that have no part in it.

While some ranks verify a step's tree, another one goes on growing it: it asks the second model what follows the
likeliest ways that the step may end, be they drafts of the tree or below it. With the answers, all ranks learn what was
found. The node of the token that the step ends with is the root of the next tree, and what was found below it costs no
time. If there is no such node, the next tree has the drafts of other sources. Several ranks begin below other nodes.

Related: PEARL (arXiv 2408.11850), SwiftSpec (arXiv 2506.11309) and Saguaro (arXiv 2603.03251) draft while a step is
verified, too.

    E entries, each of a node that was asked; W candidates of it
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lp.decoder import DraftedEnd
from lp.methods.draft_model.calibration import WIDTH
from lp.methods.draft_model.growth import MOST_AT_ONCE, Candidates, Growth

# E, the most entries that a rank sends, and the integers of one: a reference to its node, the tokens of its candidates,
# and their priors. Before them, it sends the time that it took.
MOST_ENTRIES = 24
ENTRY = 1 + 2 * WIDTH
NUM_INTEGERS = 1 + MOST_ENTRIES * ENTRY
# In place of a reference or a token: there is none.
NOTHING = -1


class GrowthAhead(Growth):
    """A copy of a step's growth that goes on, by itself, while the step is computed."""

    def __init__(self, growth: Growth, max_depth: int, time: float, place: int, num_places: int):
        """time: of the step, in plain steps. place: of this rank among the `num_places` that draft ahead of it."""
        nodes = [node.copy() for node in growth.nodes]
        most = len(nodes) + WIDTH * MOST_ENTRIES
        super().__init__(nodes[0].token, growth.calibration, max_depth, most, growth.round_cost, False, growth.costs)
        self.nodes, self.pace = nodes, growth.pace
        self.entries = np.full((MOST_ENTRIES, ENTRY), NOTHING, np.int32)
        self._time, self._place, self._num_places = time, place, num_places
        self._num_shared, self._num_entries = len(nodes), 0
        # The tokens that the rounds so far are expected to add to the next step.
        self._gained = 0.0
        # The places of the ranks that draft below the nodes which were open before the first round.
        self._places = dict[int, int]()
        # What refers to a node on all ranks: the number of one that all have, or the place of a candidate.
        self._references = list(range(len(nodes)))

    def choose(self) -> list[int]:
        open_nodes = self._likeliest()[: min(MOST_AT_ONCE, MOST_ENTRIES - self._num_entries)]
        if not open_nodes:
            return []
        chosen, cost = open_nodes[:1], self._cost_of(open_nodes[:1])
        # What a node is to gain for its cost: as much as the next round, which goes on from the likeliest one.
        least = self.calibration.rate * self.left_open(chosen[0]) / cost
        for number in open_nodes[1:]:
            more = self._cost_of([*chosen, number])
            if self.left_open(number) >= least * (more - cost):
                chosen, cost = [*chosen, number], more
        begin, end = max(self.spent, self._time), max(self.spent + cost, self._time)
        pace = max(self.pace, self._gained / begin)
        return sorted(chosen) if self._gain_of(chosen) > pace * (end - begin) else []

    def _gain_of(self, chosen: Sequence[int]) -> float:
        """The tokens that a round is expected to add to the next step."""
        return self.calibration.rate * sum(map(self.left_open, chosen))

    def took_round(self, chosen: Sequence[int]) -> None:
        self._gained += self._gain_of(chosen)
        super().took_round(chosen)

    def _likeliest(self) -> list[int]:
        """The nodes that the next round may ask about, likeliest first."""
        open_nodes = [number for number in range(len(self.nodes)) if self.may_ask(number)]
        open_nodes.sort(key=self.left_open, reverse=True)  # stable
        if not self._places:
            self._places = {number: order % self._num_places for order, number in enumerate(open_nodes)}
        return open_nodes if self._num_places == 1 else [one for one in open_nodes if self._is_own(one)]

    def _is_own(self, number: int) -> bool:
        """Whether a node, or else the nearest one above it that was open at first, is this rank's."""
        while number not in self._places:
            number = self.nodes[number].parent
        return self._places[number] == self._place

    def add(self, number: int, candidates: Candidates) -> None:
        tokens, priors = candidates.tokens[:WIDTH], np.array(candidates.priors[:WIDTH], np.float32)
        entry = self.entries[self._num_entries]
        entry[0] = self._references[number]
        entry[1 : 1 + len(tokens)] = tokens
        entry[1 + WIDTH : 1 + WIDTH + len(priors)] = priors.view(np.int32)
        first = self._num_shared + WIDTH * self._num_entries
        self._num_entries += 1
        super().add(number, Candidates(tokens, priors.tolist()))
        added = self.nodes[len(self._references) :]
        self._references += [first + tokens.index(node.token) for node in added]

    def message(self) -> np.ndarray:
        """What the other ranks are to know of it: int32 [NUM_INTEGERS]."""
        return np.concatenate([np.array([self.spent], np.float32).view(np.int32), self.entries.ravel()])


def extend(growth: Growth, found: np.ndarray) -> tuple[list[list[int]], float]:
    """Adds what ranks have found ahead to the growth of the step. found: int32 [ranks, NUM_INTEGERS].

    Returns the nodes that each rank has asked about, and the longest time that one took, in plain steps.
    """
    num_shared, times = len(growth.nodes), found[:, :1].copy().view(np.float32)
    entries = found[:, 1:].reshape(-1, MOST_ENTRIES, ENTRY)
    return [_extend(growth, of_rank, num_shared) for of_rank in entries], float(times.max())


def _extend(growth: Growth, entries: np.ndarray, num_shared: int) -> list[int]:
    """Adds what one rank has found. entries: int32 [E, ENTRY]. num_shared: nodes that all ranks had before."""
    asked = list[int]()
    for entry in entries:
        reference, tokens = int(entry[0]), entry[1 : 1 + WIDTH]
        if reference == NOTHING:
            break
        if reference < num_shared:
            number = reference
        else:
            above, place = divmod(reference - num_shared, WIDTH)
            token = int(entries[above, 1 + place])
            number = next(child for child in growth.nodes[asked[above]].children if growth.nodes[child].token == token)
        asked.append(number)
        is_there = tokens != NOTHING
        priors = entry[1 + WIDTH :].view(np.float32)[is_there]
        if growth.nodes[number].candidates is None:
            growth.add(number, Candidates(tokens[is_there].tolist(), priors.tolist()))
    return asked


def ends_drafted_for(growth: Growth, asked: Sequence[Sequence[int]], rows: Sequence[int]) -> list[DraftedEnd]:
    """The ends of a step below which nodes were asked about. asked: see `extend`. rows: the tree's rows, as nodes."""
    places, found = {number: row for row, number in enumerate(rows)}, list[DraftedEnd]()
    for place, numbers in enumerate(asked):
        for number in numbers:
            if number in places:
                continue
            while (parent := growth.nodes[number].parent) not in places:
                number = parent
            found.append(DraftedEnd(place, places[parent], growth.nodes[number].token))
    return list(dict.fromkeys(found))


class Found:
    """What is known of the tree below the end of a sequence, before its next step is planned."""

    def __init__(self, growth: Growth):
        """growth: of the step that has just ended."""
        self._growth, self._number = growth, 0

    def follow(self, tokens: Sequence[int]) -> Found | None:
        """Goes down along tokens that the sequence got. Returns None if nothing is known of what follows them."""
        nodes = self._growth.nodes
        for token in tokens:
            children = nodes[self._number].children
            self._number = next((child for child in children if nodes[child].token == token), NOTHING)
            if self._number == NOTHING:
                return None
        return self

    @property
    def has_drafts(self) -> bool:
        """Whether the second model was asked what follows the end."""
        return self._growth.nodes[self._number].candidates is not None

    def plant(self, growth: Growth) -> None:
        """Adds what is known to the growth of the next step, whose root is the end of the sequence."""
        assert growth.nodes[0].token == self._growth.nodes[self._number].token
        self._plant(growth, 0, self._number)

    def _plant(self, growth: Growth, at: int, source: int) -> None:
        known = self._growth.nodes
        candidates, node = known[source].candidates, growth.nodes[at]
        if candidates is None or not growth.may_ask(at):
            return
        growth.add(at, candidates)
        below = {known[child].token: child for child in known[source].children}
        for child in node.children:
            if (number := below.get(growth.nodes[child].token)) is not None:
                self._plant(growth, child, number)
