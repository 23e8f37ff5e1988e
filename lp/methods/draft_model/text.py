"""What a second model holds of one sequence, and the rows with which it continues it.

N nodes of a round, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from lp.kv_cache.cache import KVCache, OutOfRoom
from lp.methods.draft_model.candidates import CandidateChooser
from lp.methods.draft_model.growth import Growth, num_shared, tree_of
from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.sampling.settings import Sampling
from lp.tree import NO_ROWS, chain

# The least tokens of a text that are copied from the main model's cache; fewer are computed sooner.
LEAST_TAKEN = 32


class Round(NamedTuple):
    """What one round computes of a sequence. nodes: those that are continued. places: of each, its row in the forward's
    tree, among those whose logits are asked for.
    """

    rows: SequenceRows
    nodes: list[int]
    places: list[int]


# The main model's cache of a sequence with these tokens, without rows that were not accepted; None if it has none.
FindOwnCache = Callable[[list[int]], KVCache | None]


class DraftText:
    """A SecondText but for its rounds. Its cache holds the sequence's first tokens and those of a path of drafts.

    A copy of the main model may share its cache. Then the keys and values of the text are the main model's, and those
    of drafts lie behind them until the main model overwrites them. If it drafts ahead, it has a cache of its own, which
    begins with the main model's keys and values of the prompt.
    """

    def __init__(
        self,
        model: CausalModel,
        sampling: Sampling,
        prompt_length: int,
        vocab_size: int,
        costs: Sequence[float],
        is_drawn: bool,
        find_cache: FindOwnCache | None = None,
        is_ahead: bool = False,
    ):
        """vocab_size: of the model that the drafts are for. costs: see SecondText.relative_costs. is_drawn: whether
        drafts are drawn with noise of their own, as rejection sampling needs. find_cache: finds the main model's cache
        if the second model is a copy of it. is_ahead: whether the second model has a cache of its own all the same,
        because it drafts while the main model computes.
        """
        self.model = model
        self.relative_costs, self.relative_cost = costs, costs[0]
        self.max_length = model.max_length
        self.is_ahead = is_ahead
        self.reads_text = find_cache is None or is_ahead
        self.chooser = CandidateChooser(model, sampling, prompt_length, vocab_size, is_drawn)
        self._find_cache = find_cache
        self._cache: KVCache
        if self.reads_text:
            self._cache = model.make_cache()
        self._held: list[int] = []  # the tokens whose keys and values the cache keeps
        self._last = NO_ROWS  # the rows of the last forward, which lie behind them
        self._num_checked = 0  # tokens of the sequence that the second model knows

    def begin(self, tokens: Sequence[int]) -> bool:
        """Begins to draft. Returns whether that can be: the main model's cache may lack some tokens."""
        if self._find_cache is None:
            return True
        text = list(tokens)
        cache = self._find_cache(text)
        if self.is_ahead:
            if cache is not None and cache.length >= LEAST_TAKEN + len(text) - 1 - self.num_missing(text):
                self._take_from(cache, text)
            return True
        if cache is None or cache.length != len(text) - 1:
            return False
        self._cache, self._held, self._last = cache, text[:-1], NO_ROWS
        cache.hold()
        return True

    def end(self, tokens: Sequence[int]) -> None:
        """Ends it. The main model's cache has its own keys and values again, and no others; none if it was evicted."""
        if not self.reads_text:
            self._cache.shorten(min(self._cache.length, len(tokens) - 1))

    def _take_from(self, cache: KVCache, text: list[int]) -> None:
        """Begins with a copy of what the main model has computed of the text, if there is room for it."""
        with suppress(OutOfRoom):
            copy = cache.fork()
            self._cache.release()
            self._cache, self._held, self._last = copy, text[: copy.length], NO_ROWS

    def knows(self, tokens: Sequence[int]) -> bool:
        """Whether the second model has weights for all tokens of the sequence."""
        if all(token < self.model.vocab_size for token in tokens[self._num_checked :]):
            self._num_checked = len(tokens)
        return self._num_checked == len(tokens)

    def num_missing(self, tokens: Sequence[int]) -> int:
        """Tokens before the last one that must be computed. What is held is brought to the sequence."""
        self._keep(list(tokens))
        self._cache.hold()
        return len(tokens) - 1 - len(self._held)

    def prefill(self, tokens: Sequence[int], most_rows: int) -> Iterator[SequenceRows]:
        """Yields the tokens that are missing but for the last `most_rows` of them, in chunks of so many. The caller
        computes each before the next.
        """
        while self.num_missing(tokens) > most_rows:
            self._last = chain(tokens[len(self._held) :][:most_rows])
            yield SequenceRows(self._last, self._cache, 0)

    def round(self, tokens: Sequence[int], growth: Growth, nodes: list[int]) -> Round:
        """The forward that continues some nodes. Nodes above them that are not in the cache are computed again."""
        lines = [growth.lineage(number) for number in nodes]
        shared = num_shared(lines)
        top = lines[0][:shared]
        path = [*tokens, *(growth.nodes[number].token for number in top[1:])]
        self._keep(path)
        numbers = [top[-1], *sorted({number for line in lines for number in line[shared:]})]
        own = tree_of(growth, numbers)
        self._last = own.under(path[len(self._held) : -1])
        rows = SequenceRows(self._last, self._cache, len(own))
        return Round(rows, nodes, [numbers.index(number) for number in nodes])

    def _keep(self, path: list[int]) -> None:
        """Keeps what was computed of a path but for its last token, and drops all else."""
        cache, held = self._cache, self._held
        if cache.was_evicted and cache.take_eviction():
            assert self.reads_text, "the main model alone computes the text of a shared cache"
            held, self._last = [], NO_ROWS
        most = min(len(held), len(path) - 1)
        if held[:most] != path[:most]:
            most = next(place for place in range(most) if held[place] != path[place])
        if most < len(held):
            cache.shorten(most)
            self._last = NO_ROWS
        cache.keep(self._last.path_along(path[cache.length : -1]))
        self._held, self._last = path[: cache.length], NO_ROWS
