"""Recycled answers: the model's best tokens after every row that it has computed, whether the row was right or wrong
(Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling", 2024).

They are kept by the last two tokens of the row's path and by the last one. Under sampling they are also kept by these
tokens and the position, as the noise depends on the position and so favours the same tokens again. The newest answers
at each position, after whatever token, serve where the model has not answered for the token yet.

    R rows of a tree, K candidates of each row
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from lp.drafting.answers import CAPACITY, PAIR, TOKEN, NewestAnswers, priors, put
from lp.drafting.base import Observation, Proposals, Root, SequenceStart, StepAnswers
from lp.drafting.contexts import BITS, pairs
from lp.methods import Auto

# Bits by which a position is shifted in a key, so that it stands above the pair.
PLACE = 2 * BITS

# If more answers than this are kept by position, those at positions that the text has passed are dropped.
MOST_PLACES = 4096


class Match(IntEnum):
    """What the row of an answer and the row asked about have in common, the closest match first."""

    pair_and_place = 0
    token_and_place = 1
    pair = 2
    token = 3
    place = 4


# The probability assumed for the best candidate of each match before any has been seen.
CLOSENESS = {
    Match.pair_and_place: 0.6,
    Match.token_and_place: 0.5,
    Match.pair: 0.5,
    Match.token: 0.4,
    Match.place: 0.2,
}


class RecycledAnswers:
    """See DraftSource. Keeps the newest answers in bounded memory; its kinds are the match and the candidate's rank."""

    name = "recycled"

    def __init__(self, num_candidates: int, by_place: bool, capacity: int = CAPACITY):
        """num_candidates: K. by_place: keep answers by position as well, which helps under sampling."""
        self.num_candidates = num_candidates
        self.by_place = by_place
        self._newest = NewestAnswers(capacity)
        self._pairs_at: dict[int, tuple[int, ...]] = {}
        self._tokens_at: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, tuple[int, ...]] = {}

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return [prior for match in Match for prior in priors(CLOSENESS[match], settings.candidates)]

    @classmethod
    def begin(cls, start: SequenceStart) -> RecycledAnswers | None:
        return cls(start.settings.candidates, start.is_sampled) if start.settings.recycled_drafts else None

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
        if len(self._pairs_at) > MOST_PLACES:
            self._pairs_at = {key: best for key, best in self._pairs_at.items() if key >= place}
            self._tokens_at = {key: best for key, best in self._tokens_at.items() if key >= place}
        if len(self._places) > MOST_PLACES:
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
