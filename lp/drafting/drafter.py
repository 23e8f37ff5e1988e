"""A drafter makes the trees of one sequence from its sources, and learns from their answers.

This one is in Python. lp/drafting/native/ has another, which does the same in a hundredth of the time.

    R rows of a tree
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from lp.drafting.backoff import SpeculationAccount
from lp.drafting.base import Observation, Proposals, SequenceStart, StepAnswers
from lp.drafting.contexts import LONGEST, context_of, last_token
from lp.drafting.growth import Growth, grow, grow_offer
from lp.drafting.sources import Kinds, Sources, ranked
from lp.step_cost import StepCost
from lp.tree import Accepted, Answers, TokenTree, TreeBuilder, chain, greatest_depth, verify

# Each trial of a kind multiplies the weight of all earlier ones by this, so that about the last hundred count.
DECAY = 0.99
# The number of trials that a kind's prior probability counts as.
PRIOR_TRIALS = 3.0


class Estimates:
    """The probability that a candidate is right, for each kind of candidate (see DraftSource).

    probabilities: that of each kind. hits, trials: what they are made of.
    """

    def __init__(self, priors: Sequence[float]):
        self.probabilities = array("d", priors)
        self.hits = array("d", (PRIOR_TRIALS * prior for prior in priors))
        self.trials = array("d", [PRIOR_TRIALS] * len(priors))

    def begin(self, hits: Sequence[float], trials: Sequence[float]) -> None:
        """Takes over what was counted before, of the same kinds."""
        for kind, (of_kind, number) in enumerate(zip(hits, trials, strict=True)):
            self.hits[kind], self.trials[kind], self.probabilities[kind] = of_kind, number, of_kind / number

    def learn(self, first: int, candidates: Sequence[int], right: int, rival: int | None = None) -> None:
        """Counts candidates of the kinds `first`, `first` + 1, ... that were proposed where `right` followed.

        rival: the best candidate of a list that was surer; it counts for that list alone.
        """
        probabilities, all_hits, all_trials = self.probabilities, self.hits, self.trials
        for kind, candidate in enumerate(candidates, first):
            if candidate == rival:
                continue
            all_trials[kind] = trials = DECAY * all_trials[kind] + 1
            all_hits[kind] = hits = DECAY * all_hits[kind] + (candidate == right)
            probabilities[kind] = hits / trials


class WindowCells(Protocol):
    """The lookahead window, as far as a tree needs it.

    cells: their tokens, level by level, in columns.
    """

    cells: list[list[int]]

    @property
    def num_cells(self) -> int: ...

    def plan(self, builder: TreeBuilder) -> None:
        """Adds all cells to a tree."""
        ...

    def place(self, first_row: int) -> None:
        """Notes that the cells were added to a tree from a row on."""
        ...


class Drafter(Protocol):
    """Makes trees under the end of a sequence, the root.

    kinds: of each row of the tree planned last that is the root or a draft, the kind of its candidate; that of the
    root means nothing, nor do those behind the drafts. They hold until the next tree but one is planned. num_drafts: of
    these rows. expected, best_speed: see Growth.
    """

    @property
    def kinds(self) -> Sequence[int]: ...

    @property
    def num_drafts(self) -> int: ...

    @property
    def expected(self) -> float: ...

    @property
    def best_speed(self) -> float: ...

    def move_to(self, tokens: Sequence[int]) -> None:
        """Makes the end of the sequence the root. tokens: the whole sequence."""
        ...

    def watch(self) -> TokenTree:
        """Plans the root alone, and keeps what the sources propose to follow it."""
        ...

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float, catch_up_s: float) -> TokenTree:
        """Plans a tree of drafts and the window. The others: see `grow` in growth.py."""
        ...

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        """Grows a tree of which `take` keeps as many nodes as pay. Returns the probability of each node, in the order
        in which they are kept. See `grow_offer` in growth.py.
        """
        ...

    def take(self, num_nodes: int, window: WindowCells | None) -> TokenTree:
        """Plans the tree of the first nodes that were offered, and the window."""
        ...

    def keep(self, rows: Sequence[int], window: WindowCells | None) -> TokenTree:
        """Drops drafts from the tree planned last. Returns it without them.

        rows: the root and the drafts that stay, ascending, with all ancestors of each. window: that of the tree.
        """
        ...

    def commit(self, answers: Answers) -> Accepted:
        """Verifies the tree planned last; learns from its accepted path, and from the candidates of all its rows. Then
        the end of what was accepted is the root.
        """
        ...

    def go_on(
        self, answers: Answers, room: int, wanted: int, account: SpeculationAccount, seconds: float
    ) -> tuple[Accepted, TokenTree | None]:
        """`commit`, then plans the next tree with `grow`, without a window, where the account is going to allow that.

        room, wanted: those of the tree planned last (see Decoder.plan). seconds: modelled ones of its step, which has
        not been noted. Returns no tree if the account does not allow drafts, or no more tokens are wanted.
        """
        ...

    def learn_text(self, tokens: Sequence[int]) -> None:
        """Lets the sources learn what followed the root in steps that were not planned here.

        The end of that is the root then.
        """
        ...

    def learn_ngrams(self, ngrams: Sequence[tuple[int, ...]]) -> None:
        """Lets the sources learn n-grams that the window has yielded."""
        ...

    def likeliest(self) -> tuple[float, int] | None:
        """The probability and the token of the likeliest proposal for what follows the root; None if there is none."""
        ...

    def propose(self, path: Sequence[int], depth: int) -> Proposals:
        """Proposals of all sources for what follows a path that ends `depth` tokens below the root."""
        ...


class PythonDrafter:
    """A Drafter for any sources."""

    def __init__(self, kinds: Kinds, estimates: Estimates, cost: StepCost, start: SequenceStart):
        self._estimates, self._cost = estimates, cost
        self._sources, self._num_own, self._names = Sources(kinds, start), kinds.num_own, kinds.sources
        self._growth = Growth([])
        self._odds: list[float] = []
        self._tree: TokenTree

    @property
    def kinds(self) -> Sequence[int]:
        return self._growth.kinds

    @property
    def num_drafts(self) -> int:
        return len(self._growth.kinds)

    @property
    def expected(self) -> float:
        return self._growth.expected

    @property
    def best_speed(self) -> float:
        return self._growth.best_speed

    def move_to(self, tokens: Sequence[int]) -> None:
        self._sources.move_to(tokens)

    def _ranked(self, path: int, depth: int) -> Proposals:
        return ranked(self._sources.propose(path, depth), self._estimates.probabilities, self._num_own)

    def watch(self) -> TokenTree:
        root = self._sources.root.context
        self._growth = Growth([last_token(root)], proposals=[self._ranked(root, 0)])
        self._tree = chain(self._growth.tokens)
        return self._tree

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float, catch_up_s: float) -> TokenTree:
        root = self._sources.root.context
        self._growth = grow(
            root,
            self._ranked,
            self._estimates.probabilities,
            max_depth=max_depth,
            cost=self._cost,
            other_rows=window.num_cells if window else 0,
            limit_s=limit_s,
            catch_up_s=catch_up_s,
        )
        return self._built(window)

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        root, probabilities = self._sources.root.context, self._estimates.probabilities
        self._growth, self._odds = grow_offer(
            root, self._ranked, probabilities, max_depth=max_depth, most_rows=most_rows, least=least
        )
        return self._odds

    def take(self, num_nodes: int, window: WindowCells | None) -> TokenTree:
        self._growth.cut(1 + num_nodes)
        for probability in self._odds[:num_nodes]:
            self._growth.expected += probability
        return self._built(window)

    def _built(self, window: WindowCells | None) -> TokenTree:
        """The tree of all drafts and the window."""
        growth = self._growth
        builder = TreeBuilder(growth.tokens[0])
        builder.extend(growth.tokens[1:], growth.parents[1:], growth.depths[1:])
        if window:
            window.plan(builder)
        self._tree = builder.build()
        return self._tree

    def keep(self, rows: Sequence[int], window: WindowCells | None) -> TokenTree:
        self._tree = self._tree.take([*rows, *range(len(self._growth.tokens), len(self._tree))])
        self._growth.keep(rows)
        if window:
            window.place(len(rows))
        return self._tree

    def commit(self, answers: Answers) -> Accepted:
        accepted = verify(self._tree, answers.targets)
        self._learn_kinds(accepted)
        kept = None
        if answers.candidates is not None:
            kept = StepAnswers(self._tree, answers.candidates, accepted.rows)
        drafted_by = None
        if self.num_drafts > 1:
            drafted_by = [self._names[self.kinds[row]] for row in accepted.rows[1:] if row < self.num_drafts]
        self._sources.learn(Observation(self._sources.root, accepted.tokens, answers=kept, drafted_by=drafted_by))
        self._sources.go_on(accepted.tokens)
        return accepted

    def go_on(
        self, answers: Answers, room: int, wanted: int, account: SpeculationAccount, seconds: float
    ) -> tuple[Accepted, TokenTree | None]:
        accepted = self.commit(answers)
        count = len(accepted.tokens)
        limit_s = account.limit_after(count, seconds)
        if limit_s is None or count >= wanted:
            return accepted, None
        return accepted, self.grow(None, greatest_depth(room - count, wanted - count), limit_s, 0.0)

    def _learn_kinds(self, accepted: Accepted) -> None:
        """Compares the proposals along the accepted path, in the tree or cut from it, with the accepted tokens."""
        estimates, growth = self._estimates, self._growth
        for rows, token in zip([[0], *accepted.drafted], accepted.tokens, strict=True):
            row = next((row for row in rows if row < len(growth.tokens)), None)
            if row is None:  # from here on only window cells were right
                return
            proposals, num_own = growth.proposals[row], self._num_own
            best = next((candidates[0] for first, candidates in proposals if first < num_own), None)
            for first, candidates in proposals:
                estimates.learn(first, candidates, token, None if first < num_own else best)

    def learn_text(self, tokens: Sequence[int]) -> None:
        self._sources.learn(Observation(self._sources.root, tokens))
        self._sources.go_on(tokens)

    def learn_ngrams(self, ngrams: Sequence[tuple[int, ...]]) -> None:
        self._sources.learn(Observation(self._sources.root, (), ngrams))

    def likeliest(self) -> tuple[float, int] | None:
        probabilities, proposals = self._estimates.probabilities, self._growth.proposals[0]
        if not proposals:
            return None
        first, candidates = max(proposals, key=lambda entry: probabilities[entry[0]])
        return probabilities[first], candidates[0]

    def propose(self, path: Sequence[int], depth: int) -> Proposals:
        return self._sources.propose(context_of(path[-LONGEST:]), depth)
