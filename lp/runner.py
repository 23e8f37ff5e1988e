"""Runners answer token trees. This is their face, and the one that needs a single device.

Parallelism is a property of the runner alone: other runners (package `parallel`) keep this face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

from lp.model.causal import CausalModel
from lp.model.kv_cache import KVCache
from lp.request import Sequence
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree, chain, descend
from lp.verification import Answers


class Runner(Protocol):
    """Holds models and caches; answers trees for the sequences it has opened.

    depth: sequences that may have a step under way at the same time. num_parts: that a tree is split into.
    cache_bytes: of this rank's KV caches.
    """

    depth: int
    num_parts: int

    @property
    def cache_bytes(self) -> int: ...

    def open(self, sequence: Sequence) -> None:
        """Takes a sequence in."""
        ...

    def start(self, sequence: Sequence, tree: TokenTree) -> None:
        """Sets a step under way, on a tree whose root is the sequence's last token."""
        ...

    def finish(self, sequence: Sequence) -> Answers:
        """Waits for the sequence's step; answers for every row of its tree."""
        ...

    def close(self, sequence: Sequence) -> None:
        """Lets a sequence go that has no step under way."""
        ...


class ForwardRunner(ABC):
    """A runner whose steps are over as soon as they are started: one `forward`."""

    depth = 1
    num_parts = 1

    def __init__(self) -> None:
        self._answers: dict[str, Answers] = {}

    @property
    @abstractmethod
    def cache_bytes(self) -> int: ...

    @abstractmethod
    def open(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def close(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def forward(self, sequence: Sequence, tree: TokenTree) -> Answers:
        """Answers for every row of a tree whose root is the sequence's last token."""

    def start(self, sequence: Sequence, tree: TokenTree) -> None:
        self._answers[sequence.id] = self.forward(sequence, tree)

    def finish(self, sequence: Sequence) -> Answers:
        return self._answers.pop(sequence.id)


class SequenceState:
    """What a device holds of one sequence: its cache, its sampler, and the rows it computed last."""

    def __init__(self, cache: KVCache, sampler: Sampler):
        self.cache = cache
        self.sampler = sampler
        self.last = chain([])

    def keep_accepted(self, tokens: list[int]) -> None:
        """Keeps the longest path of the rows computed last that became part of the sequence.

        The sequence's last token is never among them: its answer is what the next step is for.
        """
        if self.cache.length >= len(tokens):  # the sequence was taken up again from an earlier token
            self.cache.length, self.last = len(tokens) - 1, chain([])
        missing = tokens[self.cache.length : -1]
        start = [0] if len(self.last) else []
        levels = descend(self.last, start, lambda depth, _: missing[depth] if depth < len(missing) else None)
        self.cache.keep(self.last.path(levels[-1][0]) if levels else [])
        self.last = chain([])

    def prefill(self, tokens: list[int], most_rows: int) -> Iterator[TokenTree]:
        """What the cache lacks of the sequence, in parts to be computed one by one, until few enough rows are left for
        them to be the trunk of a tree.
        """
        self.keep_accepted(tokens)
        while len(trunk := tokens[self.cache.length : -1]) > most_rows:
            yield chain(trunk[:most_rows])
            self.cache.keep(range(most_rows))

    def attach(self, tree: TokenTree, tokens: list[int]) -> TokenTree:
        """The tree under the trunk that the cache still lacks: the rows to compute last."""
        self.last = tree.under(tokens[self.cache.length : -1])
        return self.last


class SingleDevice(ForwardRunner):
    """One model on one device."""

    def __init__(self, model: CausalModel, prefill_chunk: int = 512):
        """prefill_chunk: most rows of a prompt in one forward, which bounds the memory of attention."""
        super().__init__()
        self.model = model
        self.prefill_chunk = prefill_chunk
        self.states: dict[str, SequenceState] = {}

    @property
    def cache_bytes(self) -> int:
        return sum(state.cache.num_bytes for state in self.states.values())

    def open(self, sequence: Sequence) -> None:
        model = self.model
        sampler = Sampler(sequence.sampling, sequence.prompt_length, model.eos, model.vocab_size, str(model.device))
        self.states[sequence.id] = SequenceState(model.make_cache(len(sequence.tokens) + 1), sampler)

    def forward(self, sequence: Sequence, tree: TokenTree) -> Answers:
        """Feeds what the cache lacks of the sequence as a trunk (the prompt, or tokens computed elsewhere)."""
        state = self.states[sequence.id]
        for part in state.prefill(sequence.tokens, self.prefill_chunk):
            self.model.forward(part, state.cache, num_logits=1)
        rows = state.attach(tree, sequence.tokens)
        logits = self.model.forward(rows, state.cache, num_logits=len(tree))
        return state.sampler.answers(logits, tree, sequence.tokens, sequence.num_candidates)

    def close(self, sequence: Sequence) -> None:
        self.model.release(self.states.pop(sequence.id).cache)
