"""decode=auto with a second model: its drafts are one more source of the tree.

`auto` plans its tree first. The second model goes on from there: each round asks it what follows the nodes after which
most is left open, be they its own or other sources', and the likeliest nodes of all stay in the tree. It is asked only
as long as what it is expected to add is worth its time, so it is not asked where other sources are sure.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lp.decoder import Described, ProposedDrafts
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.draft_model.asking import Asking, Experience
from lp.methods.draft_model.growth import Growth
from lp.methods.draft_model.interface import DraftedDecoder, SecondText, Wish
from lp.methods.draft_model.method import DraftModel, number_that_pays
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, chain, verify


class MixedDecoder(DraftedDecoder):
    """Goes on from trees of `auto`. Its trees are [root, drafts of `auto`, drafts of the second model, window].

    `auto` learns from its own rows, and from tokens that were accepted below them as from any text.
    """

    def __init__(self, inner: AutoDecoder, text: SecondText, experience: Experience, grows_freely: bool):
        """experience: of such requests. grows_freely: whether the second model is asked whatever it costs, as a fixed
        number of rows is wanted.
        """
        super().__init__(text, DraftModel.depth, experience.ahead)
        self.inner, self._grows_freely = inner, grows_freely
        self._calibration = experience.calibration
        self._asking = Asking(experience, inner.profile.cost, text.reads_text, not text.is_ahead)
        # What the other decoder has planned, the growth that began with it, and the length of the sequence it is for.
        self._planned = self.tree = chain([0])
        self._growth: Growth
        self._length = -1
        self._num_own = 1  # the root and the other decoder's drafts in the tree
        self._expected = 1.0

    @property
    def grown(self) -> Growth:
        return self._growth

    @property
    def step_time(self) -> float:
        cost = self.inner.profile.cost
        return cost.step_s(len(self.tree), 0) / cost.plain_s

    @property
    def num_candidates(self) -> int:
        return self.inner.num_candidates

    @property
    def expected(self) -> float:
        return self._expected

    @property
    def num_drafts(self) -> int:
        return len(self._rows) - 1

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        wish = self._wish(self.inner.plan(tokens, room, wanted), tokens, room, wanted)
        self._text.draft([wish], is_alone=True)
        if not self._growth.has_candidates:  # then `auto` has chosen the number
            return self._take(self.inner.num_drafts)
        return self._take(number_that_pays(self._growth, self.inner.profile.cost, self._num_cells))

    def wish(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Wish:
        proposed = self.inner.propose(tokens, room, wanted, load)
        return self._wish(self.inner.build_tree(len(proposed.odds)), tokens, room, wanted)

    def _wish(self, planned: TokenTree, tokens: Sequence[int], room: int, wanted: int) -> Wish:
        """What is asked of the second model beside the tree that the other decoder has planned."""
        self._planned, self._length = planned, len(tokens)
        depth = self._limit_depth(tokens, room, wanted)
        round_cost = 0.0 if self._grows_freely else self._text.relative_cost
        most = self.inner.profile.cost.most_rows - 1 - self._num_cells
        costs = self._text.relative_costs
        self._growth = growth = Growth(tokens[-1], self._calibration, depth, most, round_cost, False, costs)
        growth.adopt(*self._own_drafts())
        self._plant(growth)
        self._asking.limit(growth, len(tokens), wanted)
        return Wish(self._text, tokens, growth)

    @property
    def _num_cells(self) -> int:
        return len(self._planned) - 1 - self.inner.num_drafts

    def _own_drafts(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and odds of the other decoder's drafts."""
        first, last = 1, 1 + self.inner.num_drafts
        if first == last:
            return [], [], []
        tokens, parents = self._planned.as_lists()
        kinds, probabilities = self.inner.drafter.kinds, self.inner.profile.estimates.probabilities
        odds = [1.0]
        for row in range(first, last):
            odds.append(odds[parents[row]] * probabilities[kinds[row]])
        return tokens[first:last], parents[first:last], odds[first:]

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        if self._length != len(tokens):
            self._text.draft([self.wish(tokens, room, wanted, load)], is_alone=load == 1)
        self._length = -1
        best = self._growth.best()
        if self._grows_freely:
            return ProposedDrafts(1 + len(best) + self._num_cells)
        return ProposedDrafts(1 + self._num_cells, [self._growth.nodes[number].odds for number in best])

    def build_tree(self, num_drafts: int) -> TokenTree:
        return self._take(len(self._growth.best()) if self._grows_freely else num_drafts)

    def _take(self, num_drafts: int) -> TokenTree:
        """The tree of the likeliest drafts, whosever they are."""
        num_planned, nodes = 1 + self.inner.num_drafts, self._growth.nodes
        self._length, self._rows = -1, [0, *sorted(self._growth.best()[:num_drafts])]
        own = [number for number in self._rows if number < num_planned]
        if len(own) < num_planned:
            self._planned = self.inner.narrow(own)
        self._num_own, self.tree = len(own), self._planned
        self._expected = sum(nodes[number].odds for number in self._rows)
        if added := self._rows[self._num_own :]:
            places = {number: row for row, number in enumerate(self._rows)}
            self.tree = _insert(
                self._planned,
                self._num_own,
                [nodes[number].token for number in added],
                [places[nodes[number].parent] for number in added],
                [nodes[number].depth for number in added],
            )
        return self.tree

    def keep(self, rows: Sequence[int]) -> TokenTree:
        cells = range(len(self._rows), len(self.tree))
        own = [row for row in rows if row < self._num_own]
        if len(own) < self._num_own:
            self._planned = self.inner.keep(own)
        is_own = len(own) == len(rows)
        self.tree = self._planned if is_own else self.tree.take([*rows, *cells])
        self._rows, self._num_own = [self._rows[row] for row in rows], len(own)
        return self.tree

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        super().follow(tokens, more)
        self.inner.follow(tokens, more)

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        if self.tree is self._planned:
            accepted, count = self.inner.commit(tokens, answers)
            is_covered = self._learn(accepted, 0)
            return accepted, count if is_covered is None else lambda: replace(count(), is_covered=is_covered)
        accepted = verify(self.tree, answers.targets)
        own = [*range(self._num_own), *range(len(self._rows), len(self.tree))]
        found, count = self.inner.commit(tokens, answers.part(own))
        if more := [token for token in accepted.tokens[len(found.tokens) :] if token >= 0]:
            self.inner.follow([*tokens, *found.tokens], more)
        num_added, num_right = self._num_added, len(accepted.drafted) - len(found.drafted)
        is_covered = self._learn(accepted, num_right)

        def counted() -> Drafted:
            inner = count()
            return Drafted(
                inner.proposed + Counter({self.source: num_added}),
                [*inner.accepted, *[self.source] * num_right],
                is_covered,
            )

        return accepted, counted

    @property
    def _num_added(self) -> int:
        """Drafts of the second model in the tree."""
        return len(self._rows) - self._num_own

    def _learn(self, accepted: Accepted, num_right: int) -> bool | None:
        """Learns what the second model was worth, and which candidates were right along the accepted path, as far as
        drafts go. num_right: how many of its drafts were accepted. Returns what Drafted.is_covered says.
        """
        is_covered = self._end_with(accepted.tokens)
        self._asking.learn(len(accepted.tokens), num_right, len(self.tree), self._num_added)
        for row, target in zip(accepted.rows, accepted.tokens, strict=True):
            if row >= len(self._rows):
                break
            self._growth.learn(self._rows[row], target)
        return is_covered

    def describe(self) -> Described:
        inner = self.inner.describe()
        names = [*inner.sources[: self._num_own], *[self.source] * self._num_added, *inner.sources[self._num_own :]]
        return inner._replace(sources=names, drafted_for=self._ends())

    def fingerprint(self) -> int:
        drafts = self._calibration.state(), self._asking.state(), self._worth.state()
        state = self.inner.fingerprint(), *drafts, self.tree.as_lists()
        return zlib.crc32(repr(state).encode()) >> 1


def _insert(
    tree: TokenTree, at: int, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]
) -> TokenTree:
    """The tree with further rows from row `at` on. parents: of these rows. No row behind them is above one before."""
    behind = np.where(tree.parents[at:] >= at, tree.parents[at:] + len(tokens), tree.parents[at:])
    return TokenTree(
        np.concatenate([tree.tokens[:at], np.array(tokens), tree.tokens[at:]]),
        np.concatenate([tree.parents[:at], np.array(parents), behind]),
        np.concatenate([tree.depths[:at], np.array(depths), tree.depths[at:]]),
    )
