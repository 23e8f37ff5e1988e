"""The drafter in Python: what the library does, step for step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lp.drafting.account import DraftProfile, SpeculationAccount
from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import Corpus
from lp.drafting.drafter import WindowCells
from lp.drafting.history import DraftHistory
from lp.drafting.ngrams import LONGEST, Proposals, context_of, last_token
from lp.drafting.simple import StepAnswers
from lp.methods.auto.method import Auto
from lp.step_cost import StepTimes
from lp.tree import Accepted, Answers, TokenTree, TreeBuilder, chain, greatest_depth, verify
from tests.lp.drafting.reference.growth import Growth, grow, grow_offer
from tests.lp.drafting.reference.sources import (
    Observation,
    SequenceStart,
    SharedKnowledge,
    Sources,
    make_shared,
    ranked,
)


class ReferenceDrafter:
    """See Drafter."""

    def __init__(self, profile: DraftProfile, start: SequenceStart):
        self._estimates, self._cost, kinds = profile.estimates, profile.cost, profile.kinds
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

    def move_to(self, tokens: Sequence[int]) -> None:
        self._sources.move_to(tokens)

    def _ranked(self, path: int, depth: int) -> Proposals:
        return ranked(self._sources.propose(path, depth), self._estimates.probabilities, self._num_own)

    def watch(self) -> TokenTree:
        root = self._sources.root.context
        self._growth = Growth([last_token(root)], proposals=[self._ranked(root, 0)])
        self._tree = chain(self._growth.tokens)
        return self._tree

    def grow(self, window: WindowCells | None, max_depth: int, limit_s: float) -> TokenTree:
        root = self._sources.root.context
        self._growth = grow(
            root,
            self._ranked,
            self._estimates.probabilities,
            max_depth=max_depth,
            cost=self._cost,
            other_rows=window.num_cells if window else 0,
            limit_s=limit_s,
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
        return accepted, self.grow(None, greatest_depth(room - count, wanted - count), limit_s)

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


class ReferenceDrafters:
    """See Drafters."""

    has_window = True

    def __init__(self, index: AnswerIndex | None, corpus: Corpus | None, vocab_size: int | None = None):
        self._files = index, corpus

    def new_shared(self) -> SharedKnowledge:
        return make_shared()

    def new_drafter(
        self, profile: DraftProfile, settings: Auto, prompt: Sequence[int], is_sampled: bool, shared: Any
    ) -> ReferenceDrafter:
        return ReferenceDrafter(profile, SequenceStart(settings, prompt, is_sampled, shared, *self._files))


def reference_history(
    times: StepTimes | None = None,
    num_parts: int | None = None,
    index: AnswerIndex | None = None,
    corpus: Corpus | None = None,
) -> DraftHistory:
    """A history whose drafts are made by the reference."""
    return DraftHistory(times, num_parts, index, corpus=corpus, make_drafters=ReferenceDrafters)
