"""A drafter in Python, which serves decode=auto where the library of compiled C++ cannot be had, and where there are
sources that the user has written.

It drafts what followed the same tokens in the text, what the model answered after them, and what the user's sources
propose. It has no lookahead window, no index, no corpus, and nothing that requests share.

    R rows of a tree, K candidates of each row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np

from lp.drafting.account import LEAST_PROBABILITY, TEXT_LENGTHS, DraftProfile, SpeculationAccount, priors_of_sources
from lp.drafting.answer_index import PAIR, TOKEN, NewestAnswers
from lp.drafting.ngrams import LONGEST, ContextIndex, Proposals, context_of, extend, last_token, pairs
from lp.drafting.settings import DraftSettings
from lp.tree import Accepted, Answers, TokenTree, TreeBuilder, greatest_depth, verify

# Most contexts of the text that are kept.
TEXT_CAPACITY = 1 << 20


@dataclass(frozen=True)
class SequenceStart:
    """What is known of a sequence when its sources are made.

    settings: the request's settings of decode=auto. prompt: token ids. is_sampled: whether tokens are sampled rather
    than decoded greedily.
    """

    settings: DraftSettings
    prompt: Sequence[int]
    is_sampled: bool


class Root(NamedTuple):
    """The last token of a sequence, which is the root of a step's tree.

    position: its position in the sequence, from 0. context: the last tokens of the sequence, with this one at the end
    (see ngrams.py).
    """

    position: int
    context: int


class StepAnswers(NamedTuple):
    """What the model answered for each row of a step's tree.

    candidates: [R, K] best tokens, best first. right_rows: the rows whose path was accepted, the root first.
    """

    tree: TokenTree
    candidates: np.ndarray
    right_rows: Sequence[int]


@dataclass(frozen=True)
class Observation:
    """What the sources learn from: one speculative step, or several plain steps in a row.

    root: the root before these steps. accepted: the tokens that followed it. answers: None if no candidates were asked
    for.
    """

    root: Root
    accepted: Sequence[int]
    answers: StepAnswers | None = None


class DraftSource(Protocol):
    """A source of drafts for one sequence.

    A source sorts its candidates into kinds, for example by the length of the match and the candidate's rank. How often
    the candidates of each kind are right is counted for it.

    name: the source's name in statistics and metrics.
    """

    name: str

    @staticmethod
    def kinds(settings: DraftSettings) -> list[float]:
        """For each kind of this source, the probability assumed for its candidates before any has been seen."""
        ...

    @classmethod
    def begin(cls, start: SequenceStart) -> DraftSource | None:
        """Makes the source for a new sequence; None if the settings leave it out."""
        ...

    def propose(self, path: int, position: int) -> Proposals:
        """Proposes tokens that may follow a path. The kinds are this source's own, counted from 0.

        path: the context in which the path ends (see ngrams.py). position: position of its last token in the sequence.
        """
        ...

    def learn(self, observation: Observation) -> None:
        """Learns from one or more steps."""
        ...


# The sources that the user has written. An engine uses those that are here when it is made; they take part in
# decode=auto, which this drafter then serves.
OWN_SOURCES: tuple[type[DraftSource], ...] = ()


class _Text(ContextIndex):
    """Proposes what followed the same last tokens earlier in the sequence. The longest match counts."""

    def __init__(self, start: SequenceStart):
        super().__init__(TEXT_LENGTHS, TEXT_CAPACITY)
        self.add_text(context_of(start.prompt[:1]), start.prompt[1:])

    def learn(self, observation: Observation) -> None:
        self.add_text(observation.root.context, observation.accepted)


class _Recycled:
    """Proposes the model's best tokens after every row that it has computed, whether the row was right or wrong
    (Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling",
    2024). They are kept by the last two tokens of the row's path and by the last one.
    """

    def __init__(self, start: SequenceStart):
        self._newest = NewestAnswers()
        # The first kinds of answers after two tokens and after one; see `priors_of_sources`.
        self._first_of_two, self._first_of_one = 2 * start.settings.candidates, 3 * start.settings.candidates

    def propose(self, path: int, position: int) -> Proposals:
        by_two, by_one = self._newest.pairs.get(path & PAIR), self._newest.tokens.get(path & TOKEN)
        found: Proposals = [(self._first_of_two, by_two)] if _is_answer(by_two) else []
        return [*found, (self._first_of_one, by_one)] if _is_answer(by_one) and by_one != by_two else found

    def learn(self, observation: Observation) -> None:
        if observation.answers is None:
            return
        tree, candidates, right_rows = observation.answers
        tokens, parents = tree.as_lists()
        ends = pairs([tokens[parent] for parent in parents], tokens)
        ends[0] = observation.root.context & PAIR  # the token before the root is not in the tree
        self._newest.add(ends, list(map(tuple, candidates.tolist())), right_rows)


def _is_answer(candidates: tuple[int, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Whether there are tokens: a row after which no token may follow is answered by a number below 0."""
    return candidates is not None and candidates[0] >= 0


# What a source must have.
_PARTS = ("name", "kinds", "begin", "propose", "learn")


def own_kinds(settings: DraftSettings) -> dict[str, list[float]]:
    """The kinds of the user's sources, by their names. Raises ValueError for a source that is not as it must be."""
    kinds: dict[str, list[float]] = {}
    for source in OWN_SOURCES:
        if missing := [part for part in _PARTS if not hasattr(source, part)]:
            raise ValueError(f"the draft source {source.__name__} has no {', '.join(missing)}")
        if source.name in kinds or source.name in priors_of_sources(settings):
            raise ValueError(f"the draft source {source.__name__} needs another name: {source.name!r} is taken")
        kinds[source.name] = priors = list(source.kinds(settings))
        if not priors or not all(0 <= prior <= 1 for prior in priors):
            raise ValueError(f"the kinds of the draft source {source.name!r} must be probabilities, not {priors}")
    return kinds


class _Checked:
    """A source of the user. What it proposes is checked before it reaches the model."""

    def __init__(self, source: DraftSource, num_kinds: int, vocab_size: int | None):
        self._source, self._num_kinds, self._vocab_size = source, num_kinds, vocab_size
        self.learn = source.learn

    def propose(self, path: int, position: int) -> Proposals:
        """Raises ValueError for a kind or a token that there is not."""
        proposals, name = self._source.propose(path, position), self._source.name
        for kind, candidates in proposals:
            if not 0 <= kind <= self._num_kinds - len(candidates):
                raise ValueError(
                    f"the draft source {name!r} proposed {len(candidates)} candidates of kinds from {kind} on; "
                    f"it has the kinds 0 to {self._num_kinds - 1}"
                )
            for token in candidates:
                if token < 0 or (self._vocab_size is not None and token >= self._vocab_size):
                    raise ValueError(
                        f"the draft source {name!r} proposed token {token}; "
                        f"the model has the tokens 0 to {(self._vocab_size or 0) - 1}"
                    )
        return proposals


@dataclass
class _Node:
    """A row of a growing tree.

    context: the context in which its path ends. proposals: what may follow it.
    """

    token: int
    parent: int
    depth: int
    kind: int
    context: int
    proposals: Proposals = field(default_factory=list)


class SimpleDrafter:
    """See Drafter."""

    def __init__(self, profile: DraftProfile, start: SequenceStart, vocab_size: int | None):
        self._estimates, self._cost = profile.estimates, profile.cost
        first, settings = profile.kinds.first, start.settings
        self._sources: list[tuple[int, _Text | _Recycled | _Checked]] = []
        if settings.suffix_drafts:
            self._sources.append((first["suffix"], _Text(start)))
        if settings.recycled_drafts:
            self._sources.append((first["recycled"], _Recycled(start)))
        for kind in OWN_SOURCES:
            if (source := kind.begin(start)) is not None:
                num_kinds = profile.kinds.sources.count(source.name) // 2  # each is there twice
                self._sources.append((first[source.name], _Checked(source, num_kinds, vocab_size)))
        self._root = Root(0, context_of([]))
        if start.prompt:
            self.move_to(start.prompt)
        self._nodes: list[_Node] = []
        self._odds: list[float] = []
        self._tree: TokenTree
        self.expected = 1.0

    @property
    def kinds(self) -> Sequence[int]:
        return [node.kind for node in self._nodes]

    @property
    def num_drafts(self) -> int:
        return len(self._nodes)

    def move_to(self, tokens: Sequence[int]) -> None:
        self._root = Root(len(tokens) - 1, context_of(tokens[-LONGEST:]))

    def watch(self) -> TokenTree:
        self._begin()
        self.expected = 1.0
        return self._built()

    def grow(self, window: object, max_depth: int, limit_s: float) -> TokenTree:
        cost, expected, deepest = self._cost, 1.0, 0
        kept, self.expected, best_speed = 1, 1.0, 1.0 / cost.step_s(1, 0)
        for probability in self._likeliest(max_depth, LEAST_PROBABILITY):
            num_rows = len(self._nodes)
            if num_rows > cost.most_rows or probability < best_speed * cost.row_s(num_rows - 1, deepest):
                break
            expected += probability
            deepest = max(deepest, self._nodes[-1].depth)
            seconds = cost.step_s(num_rows, deepest)
            if seconds > limit_s:
                break
            if (speed := expected / seconds) >= best_speed:
                kept, self.expected, best_speed = num_rows, expected, speed
        del self._nodes[kept:]
        return self._built()

    def offer(self, max_depth: int, most_rows: int, least: float) -> Sequence[float]:
        self._odds = []
        if most_rows <= 1:
            self._begin()
            return self._odds
        for probability in self._likeliest(max_depth, max(least, LEAST_PROBABILITY)):
            self._odds.append(probability)
            if len(self._nodes) >= most_rows:
                break
        return self._odds

    def take(self, num_nodes: int, window: object) -> TokenTree:
        del self._nodes[1 + num_nodes :]
        self.expected = 1.0 + sum(self._odds[:num_nodes])
        return self._built()

    def keep(self, rows: Sequence[int], window: object) -> TokenTree:
        self._tree, self._nodes = self._tree.take(rows), [self._nodes[row] for row in rows]
        return self._tree

    def commit(self, answers: Answers) -> Accepted:
        accepted = verify(self._tree, answers.targets)
        for row, token in zip(accepted.rows, accepted.tokens, strict=True):
            for first, candidates in self._nodes[row].proposals:
                self._estimates.learn(first, candidates, token)
        kept = None if answers.candidates is None else StepAnswers(self._tree, answers.candidates, accepted.rows)
        self._learn(Observation(self._root, accepted.tokens, kept))
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

    def learn_text(self, tokens: Sequence[int]) -> None:
        self._learn(Observation(self._root, tokens))

    def learn_ngrams(self, ngrams: Sequence[tuple[int, ...]]) -> None:
        raise AssertionError("there is no window")

    def likeliest(self) -> tuple[float, int] | None:
        probabilities = self._estimates.probabilities
        if not (proposals := self._nodes[0].proposals):
            return None
        first, candidates = max(proposals, key=lambda entry: probabilities[entry[0]])
        return probabilities[first], candidates[0]

    def propose(self, path: Sequence[int], depth: int) -> Proposals:
        return self._propose(context_of(path[-LONGEST:]), depth)

    def _propose(self, context: int, depth: int) -> Proposals:
        position = self._root.position + depth
        return [
            (first + kind, tuple(candidates))  # a copy, as the source may learn before the candidates are counted
            for first, source in self._sources
            for kind, candidates in source.propose(context, position)
        ]

    def _learn(self, observation: Observation) -> None:
        """Lets the sources learn from tokens that followed the root, whose last one is the root then."""
        for _, source in self._sources:
            source.learn(observation)
        context = observation.root.context
        for token in observation.accepted:
            context = extend(context, token)
        self._root = Root(observation.root.position + len(observation.accepted), context)

    def _begin(self) -> None:
        """Begins a tree with its root."""
        context = self._root.context
        self._nodes = [_Node(last_token(context), -1, 0, -1, context, self._propose(context, 0))]

    def _likeliest(self, max_depth: int, least: float) -> Iterator[float]:
        """Adds the likeliest draft to the tree, again and again. Yields its probability, which is its parent's times
        that of its kind.
        """
        self._begin()
        probabilities = self._estimates.probabilities
        frontier: list[tuple[float, int, int, int, int]] = []  # the likeliest first, of equal ones the oldest
        known: set[tuple[int, int]] = set()
        row, reached, count = 0, 1.0, 0
        while True:
            if self._nodes[row].depth < max_depth:
                for first, candidates in self._nodes[row].proposals:
                    for kind, token in enumerate(candidates, first):
                        if (odds := reached * probabilities[kind]) >= least:
                            count += 1
                            heappush(frontier, (-odds, count, row, kind, token))
            while frontier and (frontier[0][2], frontier[0][4]) in known:
                heappop(frontier)
            if not frontier:
                return
            negative, _, parent, kind, token = heappop(frontier)
            known.add((parent, token))
            above, row, reached = self._nodes[parent], len(self._nodes), -negative
            context = extend(above.context, token)
            node = _Node(token, parent, above.depth + 1, kind, context)
            self._nodes.append(node)
            yield reached
            if node.depth < max_depth:
                node.proposals = self._propose(context, node.depth)

    def _built(self) -> TokenTree:
        builder = TreeBuilder(self._nodes[0].token)
        for node in self._nodes[1:]:
            builder.add(node.token, node.parent)
        self._tree = builder.build()
        return self._tree


class SimpleDrafters:
    """See Drafters."""

    has_window = False

    def __init__(self, vocab_size: int | None = None):
        """vocab_size: of the model; None if it is not known. Raises ValueError for sources that cannot be used."""
        own_kinds(DraftSettings())
        self._vocab_size = vocab_size

    def new_shared(self) -> None:
        return None

    def new_drafter(
        self, profile: DraftProfile, settings: DraftSettings, prompt: Sequence[int], is_sampled: bool, shared: None
    ) -> SimpleDrafter:
        return SimpleDrafter(profile, SequenceStart(settings, prompt, is_sampled), self._vocab_size)
