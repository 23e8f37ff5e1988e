"""The draft source that looks the end of a path up in a corpus: what followed the same last tokens most often there.

lp/platform/csrc/corpus.h does the same in the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.base import Observation, Proposals, SequenceStart
from lp.drafting.contexts import BITS, FOLLOWERS, OFFSET, mask
from lp.drafting.corpus.file import Corpus
from lp.drafting.corpus.rest import CorpusRest
from lp.methods import Auto

TOKEN = mask(1)
# Lengths of the matches that are told apart. One token says too little, and is the slowest to look up.
LENGTHS = (2, 3, 4, 5, 6, 8)
# Of a match with more places than these, so many of them, evenly spread, are looked at.
MOST_PLACES = 64


class CorpusDrafts:
    """See DraftSource. A kind is a length of the match and a rank; what followed most often ranks first."""

    name = "corpus"

    def __init__(self, corpus: Corpus):
        self._corpus = corpus
        self._rest = CorpusRest()

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        by_rank = [0.3**rank for rank in range(FOLLOWERS)]
        return [min(0.7, 0.1 + 0.1 * length) * share for length in LENGTHS for share in by_rank]

    @classmethod
    def begin(cls, start: SequenceStart) -> CorpusDrafts | None:
        if start.corpus is None or not start.settings.corpus_drafts:
            return None
        return cls(start.corpus)

    def propose(self, path: int, position: int) -> Proposals:
        if self._rest.is_resting:
            return []
        matches: list[tuple[int, int]] = []
        for length in LENGTHS:
            begin, end = find(
                self._corpus, [(path >> BITS * place & TOKEN) - OFFSET for place in reversed(range(length))]
            )
            if begin == end:
                break
            matches.append((begin, end))
        for number in reversed(range(len(matches))):  # the longest match may stand at the ends of texts alone
            if found := followers(self._corpus, *matches[number], LENGTHS[number]):
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
