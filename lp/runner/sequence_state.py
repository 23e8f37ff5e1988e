"""What a device holds of one sequence. Knows nothing of other sequences, or of how rows are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lp.kv_cache.cache import KVCache, OutOfRoom
from lp.model.causal import CausalModel
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.sampler import Sampler
from lp.tree import NO_ROWS, TokenTree, chain


class CachedTokens:
    """The keys and values that one model has of a sequence.

    cache: keys and values of the sequence's first tokens. last: the rows computed last; their keys and values lie in
    the cache behind those of the sequence.
    """

    def __init__(self, cache: KVCache):
        self.cache = cache
        self.last = NO_ROWS

    def take_from(self, other: CachedTokens, tokens: list[int], length: int) -> None:
        """Takes over what another state has computed of the first `length` of its sequence's tokens.

        tokens: that sequence, which has the same first tokens. Takes nothing if there is no room for a copy.
        """
        other.keep_accepted(tokens)
        with suppress(OutOfRoom):
            copy = other.cache.fork(min(length, other.cache.length))
            self.drop()
            if copy.states is not None and self.cache.states is not None:
                copy.states.mark = self.cache.states.mark
            self.cache = copy

    def forget_last(self) -> None:
        """The rows of the last forward have no keys and values, as it failed."""
        self.last = NO_ROWS

    def drop(self) -> None:
        """Gives the cache's memory back."""
        self.cache.release()
        self.last = NO_ROWS

    def keep_accepted(self, tokens: list[int]) -> None:
        """Keeps the keys and values of the rows computed last that became part of the sequence, and drops the others.

        The sequence's last token is never kept: it is the root of the next step's tree.
        """
        if self.cache.was_evicted and self.cache.take_eviction():
            self.last = NO_ROWS
        if self.cache.length >= len(tokens):  # the sequence was resumed with fewer tokens than the cache holds
            self.cache.shorten(len(tokens) - 1)
            self.last = NO_ROWS
        self.cache.keep(self.last.path_along(tokens[self.cache.length : -1]))
        self.last = NO_ROWS

    def num_kept(self, tokens: list[int]) -> int:
        """How many of these tokens, the last one apart, will have keys and values after `keep_accepted`."""
        if self.cache.was_evicted:
            return 0
        more = self.last.path_along(tokens[self.cache.length : -1])
        return min(self.cache.length + len(more), len(tokens) - 1)

    def prefill(self, step: StepInput, most_rows: int) -> Iterator[TokenTree]:
        """Yields the tokens that the cache lacks as chains of `most_rows`; the caller computes each before the next.

        What was accepted must have been kept. At most `most_rows` tokens are left at the end. They become the trunk of
        the step's tree.
        """
        tokens = step.sequence.tokens
        if step.num_computed - self.cache.length > most_rows:
            self.cache.reserve(step.num_computed + 1 - self.cache.length)  # at once, rather than once for each chain
        while len(trunk := tokens[self.cache.length : step.num_computed]) > most_rows:
            yield chain(trunk[:most_rows])
            self.cache.keep(range(most_rows))

    def attach(self, step: StepInput) -> TokenTree:
        """The tree under a trunk of the tokens that the cache still lacks: all rows of the step's last forward."""
        cached = self.cache.length
        self.last = (
            step.tree.under(step.sequence.tokens[cached : step.num_computed])
            if cached < step.num_computed
            else step.tree
        )
        return self.last


class SequenceState(CachedTokens):
    """What a device holds of one sequence."""

    def __init__(self, cache: KVCache, sampler: Sampler):
        super().__init__(cache)
        self.sampler = sampler

    @staticmethod
    def begin(sequence: Sequence, model: CausalModel) -> SequenceState:
        """The state of a new sequence: an empty cache with room for it, and a sampler."""
        prompt_length, grammar = sequence.prompt_length, None
        if sequence.grammar is not None:
            assert model.grammars is not None
            grammar = model.grammars.begin(sequence.grammar, prompt_length)
        sampler = Sampler(
            sequence.sampling, prompt_length, model.eos, model.vocab_size, str(model.device), grammar, sequence.contrast
        )  # fmt: skip
        cache = model.make_cache(len(sequence.tokens) + 1)
        if cache.states is not None:
            cache.states.mark = prompt_length - 1
        return SequenceState(cache, sampler)
