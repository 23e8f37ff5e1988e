"""The draft sources in Python, as the library has them: what each of them proposes, and what it learns.

R rows of a tree, K candidates of each row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from lp.drafting import answer_index, drafter
from lp.drafting.account import CORPUS_LENGTHS, TEXT_LENGTHS, WINDOW_LENGTHS, Kinds
from lp.drafting.answer_index import PAIR, TOKEN, AnswerIndex, NewestAnswers, put
from lp.drafting.corpus import FIRST_REST, LONGEST_REST, MOST_PLACES, TRIAL_STEPS, Corpus
from lp.drafting.ngrams import BITS, FOLLOWERS, LONGEST, OFFSET, ContextIndex, Proposals, context_of, extend, pairs
from lp.drafting.simple import Root, StepAnswers
from lp.methods.auto.method import Auto


@dataclass(frozen=True)
class SharedKnowledge:
    """What requests of one owner share: the n-grams of their texts, and the model's answers to them."""

    ngrams: ContextIndex
    answers: NewestAnswers


@dataclass(frozen=True)
class SequenceStart:
    """What is known of a sequence when its sources are made."""

    settings: Auto
    prompt: Sequence[int]
    is_sampled: bool
    shared: SharedKnowledge | None = None
    index: AnswerIndex | None = None
    corpus: Corpus | None = None


@dataclass(frozen=True)
class Observation:
    """What the sources learn from: one speculative step, or several plain steps in a row.

    root: the root before these steps. accepted: the tokens that followed it. ngrams: n-grams that the lookahead window
    yielded. answers: None if no candidates were asked for. drafted_by: of each accepted draft, the name of its source;
    None unless there were drafts.
    """

    root: Root
    accepted: Sequence[int]
    ngrams: Sequence[tuple[int, ...]] = ()
    answers: StepAnswers | None = None
    drafted_by: Sequence[str] | None = None


class Source(Protocol):
    name: str

    @classmethod
    def begin(cls, start: SequenceStart) -> Source | None: ...

    def propose(self, path: int, position: int) -> Proposals: ...

    def learn(self, observation: Observation) -> None: ...


class SuffixIndex(ContextIndex):
    """A kind is a length of the match and a rank; the newest candidate ranks first."""

    name = "suffix"

    @classmethod
    def begin(cls, start: SequenceStart) -> SuffixIndex | None:
        if not start.settings.suffix_drafts:
            return None
        index = cls(TEXT_LENGTHS, drafter.TEXT_CAPACITY)
        index.add_text(context_of(start.prompt[:1]), start.prompt[1:])
        return index

    def learn(self, observation: Observation) -> None:
        self.add_text(observation.root.context, observation.accepted)


class WindowNGrams(ContextIndex):
    """A kind is a length of the match and a rank; the newest candidate ranks first."""

    name = "window"

    @classmethod
    def begin(cls, start: SequenceStart) -> WindowNGrams | None:
        settings = start.settings
        return cls(WINDOW_LENGTHS[: settings.ngram - 1], drafter.WINDOW_CAPACITY) if settings.window_drafts else None

    def learn(self, observation: Observation) -> None:
        for ngram in observation.ngrams:
            self.add(context_of(ngram[:-1]), ngram[-1])


def make_shared() -> SharedKnowledge:
    """Nothing yet, for one owner's requests."""
    return SharedKnowledge(ContextIndex(TEXT_LENGTHS, drafter.SHARED_CAPACITY), NewestAnswers(answer_index.CAPACITY))


class SharedDrafts:
    """It has the kinds of the suffix index, learnt separately, and one for each rank of an answer."""

    name = "shared"

    def __init__(self, shared: SharedKnowledge, start: SequenceStart):
        self._shared = shared
        self._num_candidates = start.settings.candidates
        self._first_answer = len(TEXT_LENGTHS) * FOLLOWERS
        self._shared.ngrams.add_text(context_of(start.prompt[:1]), start.prompt[1:])

    @classmethod
    def begin(cls, start: SequenceStart) -> SharedDrafts | None:
        return None if start.shared is None else cls(start.shared, start)

    def propose(self, path: int, position: int) -> Proposals:
        # Copies, as other requests may add followers before this one's step is over.
        found: Proposals = [(kind, tuple(followers)) for kind, followers in self._shared.ngrams.propose(path, position)]
        answers = self._shared.answers
        if best := answers.pairs.get(path & PAIR) or answers.tokens.get(path & TOKEN):
            # Other requests may ask for more candidates.
            found.append((self._first_answer, best[: self._num_candidates]))
        return found

    def learn(self, observation: Observation) -> None:
        self._shared.ngrams.add_text(observation.root.context, observation.accepted)
        if observation.answers is not None:
            _, _, right_rows = observation.answers
            self._shared.answers.add(*answered_pairs(observation.root, observation.answers), right_rows)


# Bits by which a position is shifted in a key, so that it stands above the pair.
PLACE = 2 * BITS


class Match(IntEnum):
    """What the row of an answer and the row asked about have in common, the closest match first."""

    pair_and_place = 0
    token_and_place = 1
    pair = 2
    token = 3
    place = 4


class RecycledAnswers:
    """Keeps the newest answers in bounded memory; its kinds are the match and the candidate's rank."""

    name = "recycled"

    def __init__(self, num_candidates: int, by_place: bool, capacity: int):
        """num_candidates: K. by_place: keep answers by position as well, which helps under sampling."""
        self.num_candidates = num_candidates
        self.by_place = by_place
        self._newest = NewestAnswers(capacity)
        self._pairs_at: dict[int, tuple[int, ...]] = {}
        self._tokens_at: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, tuple[int, ...]] = {}

    @classmethod
    def begin(cls, start: SequenceStart) -> RecycledAnswers | None:
        return (
            cls(start.settings.candidates, start.is_sampled, drafter.MOST_ANSWERS)
            if start.settings.recycled_drafts
            else None
        )

    def propose(self, path: int, position: int) -> Proposals:
        return [(match * self.num_candidates, answers) for match, answers in self.lookup(path, position)]

    def learn(self, observation: Observation) -> None:
        """Keeps the answers of all rows. Of several rows with the same key, one whose path was right is preferred."""
        if observation.answers is None:
            return
        root, (tree, _, right_rows) = observation.root, observation.answers
        positions = [root.position + depth for depth in tree.depths.tolist()]
        self.add(*answered_pairs(root, observation.answers), positions, right_rows)
        self.forget(before=root.position)

    def add(
        self, pairs: list[int], best: list[tuple[int, ...]], positions: list[int], right_rows: Sequence[int]
    ) -> None:
        """Keeps the answers of rows.

        pairs: [R] the context of two tokens in which each row's path ends. best: [R] answers of K tokens, best first.
        positions: [R] positions of the rows in the sequence. Of several rows with the same key, the last of
        `right_rows` among them is kept, or else the first row.
        """
        self._newest.add(pairs, best, right_rows)
        places = [position << PLACE for position in positions]
        put(self._places, places, best, right_rows)
        if self.by_place:
            put(self._pairs_at, [place | pair for place, pair in zip(places, pairs, strict=True)], best, right_rows)
            tokens_at = [place | pair & TOKEN for place, pair in zip(places, pairs, strict=True)]
            put(self._tokens_at, tokens_at, best, right_rows)

    def forget(self, before: int) -> None:
        """Drops answers kept by position where there are too many: those at positions below `before`."""
        place = before << PLACE
        if len(self._pairs_at) > drafter.MOST_ANSWERED_PLACES:
            self._pairs_at = {key: best for key, best in self._pairs_at.items() if key >= place}
            self._tokens_at = {key: best for key, best in self._tokens_at.items() if key >= place}
        if len(self._places) > drafter.MOST_ANSWERED_PLACES:
            self._places = {key: best for key, best in self._places.items() if key >= place}

    def lookup(self, context: int, position: int) -> list[tuple[Match, tuple[int, ...]]]:
        """Answers of the closest match at the same position, and those at any position after the same two tokens and
        after the same one.
        """
        pair, token, place = context & PAIR, context & TOKEN, position << PLACE
        found: list[tuple[Match, tuple[int, ...]]] = []
        if self.by_place:
            if (best := self._pairs_at.get(place | pair)) is not None:
                found.append((Match.pair_and_place, best))
            elif (best := self._tokens_at.get(place | token)) is not None:
                found.append((Match.token_and_place, best))
            elif (best := self._places.get(place)) is not None:
                found.append((Match.place, best))
        if (by_two := self._newest.pairs.get(pair)) is not None:
            found.append((Match.pair, by_two))
        if (by_one := self._newest.tokens.get(token)) is not None and by_one != by_two:
            found.append((Match.token, by_one))
        if not found and (best := self._places.get(place)) is not None:
            found.append((Match.place, best))
        return found


def answered_pairs(root: Root, answers: StepAnswers) -> tuple[list[int], list[tuple[int, ...]]]:
    """[R] the context of two tokens in which each row's path ends, and [R] its answer, of a step's tree."""
    tokens = answers.tree.tokens.tolist()
    ends = pairs([tokens[parent] for parent in answers.tree.parents.tolist()], tokens)
    ends[0] = root.context & PAIR  # the token before the root is not in the tree
    # Tuples, since the garbage collector soon stops tracking them.
    return ends, list(zip(*answers.candidates.T.tolist(), strict=True))


class IndexedAnswers:
    """Its kinds are the number of tokens that match, two or one, and the candidate's rank."""

    name = "index"

    def __init__(self, index: AnswerIndex, num_candidates: int):
        self._answers = index.newest(index.num_pairs + index.num_tokens)
        self._num_candidates = num_candidates

    @classmethod
    def begin(cls, start: SequenceStart) -> IndexedAnswers | None:
        if start.index is None or not start.settings.index_drafts:
            return None
        return cls(start.index, start.settings.candidates)

    def propose(self, path: int, position: int) -> Proposals:
        if (best := self._answers.pairs.get(path & PAIR)) is not None:
            return [(0, best[: self._num_candidates])]
        if (best := self._answers.tokens.get(path & TOKEN)) is not None:
            return [(self._num_candidates, best[: self._num_candidates])]
        return []

    def learn(self, observation: Observation) -> None:
        """An index does not change."""


class CorpusRest:
    """Says for one sequence whether its corpus rests; at first, it is tried.

    is_resting: whether the next step does without it.
    """

    def __init__(self) -> None:
        self.is_resting = False
        self._num_left, self._num_right = TRIAL_STEPS, 0
        self._next_rest = FIRST_REST

    def took_step(self, num_right: int) -> None:
        """Notes a step with drafts. num_right: accepted drafts that the corpus is the source of."""
        self._num_right += num_right
        self._num_left -= 1
        if self._num_left:
            return
        self.is_resting = not (self.is_resting or self._num_right)
        if self.is_resting:
            self._num_left, self._next_rest = self._next_rest, min(LONGEST_REST, 2 * self._next_rest)
        else:
            self._num_left = TRIAL_STEPS
            if self._num_right:
                self._next_rest = FIRST_REST
        self._num_right = 0


class CorpusDrafts:
    """A kind is a length of the match and a rank; what followed most often ranks first."""

    name = "corpus"

    def __init__(self, corpus: Corpus):
        self._corpus = corpus
        self._rest = CorpusRest()

    @classmethod
    def begin(cls, start: SequenceStart) -> CorpusDrafts | None:
        if start.corpus is None or not start.settings.corpus_drafts:
            return None
        return cls(start.corpus)

    def propose(self, path: int, position: int) -> Proposals:
        if self._rest.is_resting:
            return []
        matches: list[tuple[int, int]] = []
        for length in CORPUS_LENGTHS:
            begin, end = find(
                self._corpus, [(path >> BITS * place & TOKEN) - OFFSET for place in reversed(range(length))]
            )
            if begin == end:
                break
            matches.append((begin, end))
        for number in reversed(range(len(matches))):  # the longest match may stand at the ends of texts alone
            if found := followers(self._corpus, *matches[number], CORPUS_LENGTHS[number]):
                return [(number * FOLLOWERS, found)]
        return []

    def learn(self, observation: Observation) -> None:
        """Notes whether the corpus helps, which does not change itself."""
        if observation.drafted_by is not None:
            self._rest.took_step(observation.drafted_by.count(self.name))


def find(corpus: Corpus, tokens: Sequence[int]) -> tuple[int, int]:
    """The range in `places` of what begins with the tokens; both ends are equal if nothing does.

    No match goes past the end of a text.
    """
    if not all(0 <= token < corpus.vocab_size for token in tokens):
        return 0, 0
    begin, end = int(corpus.first[tokens[0]]), int(corpus.first[tokens[0] + 1])
    for depth in range(1, len(tokens)):
        if begin == end:
            break
        begin, end = (_bound(corpus, begin, end, depth, tokens[depth] + more) for more in (0, 1))
    return begin, end


def _bound(corpus: Corpus, begin: int, end: int, depth: int, token: int) -> int:
    """The first of the sorted places begin .. end whose token at `depth` is not less than `token`."""
    while begin < end:
        middle = (begin + end) // 2
        if _at(corpus, middle, depth) < token:
            begin = middle + 1
        else:
            end = middle
    return begin


def followers(corpus: Corpus, begin: int, end: int, length: int) -> list[int]:
    """The tokens that follow a match of `length` tokens most often; of equally frequent ones the least id comes first.

    At least one place must match. Equal tokens are neighbours, since the places are sorted by more than the match.
    """
    step = max(1.0, (end - begin) / MOST_PLACES)
    runs: list[list[int]] = []
    for number in range(min(end - begin, MOST_PLACES)):
        token = _at(corpus, begin + int(number * step), length)
        if token == corpus.vocab_size:
            continue
        if runs and runs[-1][1] == token:
            runs[-1][0] += 1
        else:
            runs.append([1, token])
    return [token for _, token in sorted(runs, key=lambda run: -run[0])[:FOLLOWERS]]


def _at(corpus: Corpus, number: int, depth: int) -> int:
    """The token `depth` tokens behind a place; the end of a text if there is none."""
    place = int(corpus.places[number]) + depth
    return int(corpus.ids[place]) if place < len(corpus.ids) else -1


SOURCES: tuple[type[Source], ...] = (
    SuffixIndex, SharedDrafts, WindowNGrams, RecycledAnswers, IndexedAnswers, CorpusDrafts,
)  # fmt: skip


def ranked(proposals: Proposals, probabilities: Sequence[float], num_own: int) -> Proposals:
    """The proposals for one path, with rivalled kinds for all lists but the one that is surest of its best candidate.

    probabilities: that of each kind. num_own: see Kinds.
    """
    if len(proposals) < 2:
        return proposals
    surest = max(range(len(proposals)), key=lambda at: probabilities[proposals[at][0]])
    return [(first + num_own * (at != surest), candidates) for at, (first, candidates) in enumerate(proposals)]


class Sources:
    """The sources that one sequence uses, and the present root of its tree."""

    def __init__(self, kinds: Kinds, start: SequenceStart):
        self.root = Root(0, context_of([]))
        self._in_use = [source for kind in SOURCES if (source := kind.begin(start)) is not None]
        self._proposers = [(kinds.first[source.name], source.propose) for source in self._in_use]

    def move_to(self, tokens: Sequence[int]) -> None:
        """Makes the end of the sequence the root."""
        self.root = Root(len(tokens) - 1, context_of(tokens[-LONGEST:]))

    def go_on(self, tokens: Sequence[int]) -> None:
        """Moves the root along tokens that follow it."""
        context = self.root.context
        for token in tokens:
            context = extend(context, token)
        self.root = Root(self.root.position + len(tokens), context)

    def propose(self, path: int, depth: int) -> Proposals:
        """Proposals of all sources for what follows a path that ends `depth` tokens below the root."""
        position = self.root.position + depth
        proposals: Proposals = []
        for first, propose in self._proposers:
            for kind, candidates in propose(path, position):
                proposals.append((first + kind, candidates))
        return proposals

    def learn(self, observation: Observation) -> None:
        """Lets every source learn from one or more steps."""
        for source in self._in_use:
            source.learn(observation)
