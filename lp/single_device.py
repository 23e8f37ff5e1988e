"""The runner of a single device. It holds one model and, for every sequence, a KV cache and a sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

from lp.model.causal import CausalModel
from lp.model.kv_cache import KVCache
from lp.request import Sequence
from lp.runner import StepInput
from lp.sampling.fused import KINDS, NUM_BEST, TRUNCATED, can_fuse
from lp.sampling.sampler import Sampler
from lp.tree import NO_ROWS, TokenTree, chain
from lp.verification import Answers

# Waits for the answers of a step that was started.
Pending = Callable[[], Answers]


class ForwardRunner(ABC):
    """A runner that gives the device all its work in `start`, step by step, and waits for answers in `finish`."""

    depth = 1
    num_parts = 1

    def __init__(self) -> None:
        self._under_way: deque[list[Pending]] = deque()

    @property
    @abstractmethod
    def is_asynchronous(self) -> bool: ...

    @property
    @abstractmethod
    def cache_bytes(self) -> int: ...

    @abstractmethod
    def open(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def close(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def launch(self, step: StepInput) -> Pending:
        """Gives the device a step. Returns what waits for the answers for every row of its tree."""

    def start(self, steps: list[StepInput]) -> None:
        self._under_way.append([self.launch(step) for step in steps])

    def finish(self) -> list[Answers]:
        return [pending() for pending in self._under_way.popleft()]

    def abandon(self) -> None:
        self._under_way.clear()


class SequenceState:
    """What a device holds of one sequence.

    cache: keys and values of the sequence's first tokens. last: the rows computed last; their keys and values lie in
    the cache behind those of the sequence.
    """

    def __init__(self, cache: KVCache, sampler: Sampler):
        self.cache = cache
        self.sampler = sampler
        self.last = NO_ROWS

    @staticmethod
    def begin(sequence: Sequence, model: CausalModel) -> SequenceState:
        """The state of a new sequence: an empty cache with room for it, and a sampler."""
        sampler = Sampler(sequence.sampling, sequence.prompt_length, model.eos, model.vocab_size, str(model.device))
        return SequenceState(model.make_cache(len(sequence.tokens) + 1), sampler)

    def keep_accepted(self, tokens: list[int]) -> None:
        """Keeps the keys and values of the rows computed last that became part of the sequence, and drops the others.

        The sequence's last token is never kept: it is the root of the next step's tree.
        """
        if self.cache.take_eviction():
            self.last = NO_ROWS
        if self.cache.length >= len(tokens):  # the sequence was resumed with fewer tokens than the cache holds
            self.cache.length, self.last = len(tokens) - 1, NO_ROWS
        self.cache.keep(self.last.path_along(tokens[self.cache.length : -1]))
        self.last = NO_ROWS

    def prefill(self, tokens: list[int], most_rows: int) -> Iterator[TokenTree]:
        """Yields the tokens that the cache lacks as chains of `most_rows`; the caller computes each before the next.

        At most `most_rows` tokens are left at the end. They become the trunk of the step's tree.
        """
        self.keep_accepted(tokens)
        if len(tokens) - 1 - self.cache.length > most_rows:
            self.cache.reserve(len(tokens) - self.cache.length)  # at once, rather than once for each chain
        while len(trunk := tokens[self.cache.length : -1]) > most_rows:
            yield chain(trunk[:most_rows])
            self.cache.keep(range(most_rows))

    def attach(self, tree: TokenTree, tokens: list[int]) -> TokenTree:
        """The tree under a trunk of the tokens that the cache still lacks: all rows of the step's last forward."""
        self.last = tree.under(tokens[self.cache.length : -1])
        return self.last


class SingleDevice(ForwardRunner):
    """One model on one device."""

    def __init__(self, model: CausalModel, prefill_chunk: int = 512):
        """prefill_chunk: most rows of a prompt in one forward; it bounds the memory that attention needs."""
        super().__init__()
        self.model = model
        self.prefill_chunk = prefill_chunk
        self.states: dict[str, SequenceState] = {}
        if can_fuse(model.device):
            names = [name for name in KINDS if name != TRUNCATED or model.vocab_size > NUM_BEST]
            model.capture_choosing({name: KINDS[name] for name in names})

    @property
    def cache_bytes(self) -> int:
        return sum(state.cache.num_bytes for state in self.states.values())

    def open(self, sequence: Sequence) -> None:
        self.states[sequence.id] = SequenceState.begin(sequence, self.model)

    @property
    def is_asynchronous(self) -> bool:
        return self.model.device.type != "cpu"

    def launch(self, step: StepInput) -> Pending:
        """Computes a step's tree, and before it the tokens that the cache lacks: the prompt, or tokens that other
        ranks have computed. A CPU is done when this returns, a GPU is not.
        """
        tokens, state = step.sequence.tokens, self.states[step.sequence.id]
        for part in state.prefill(tokens, self.prefill_chunk):
            self.model.forward(part, state.cache, num_logits=1)
        rows = state.attach(step.tree, tokens)
        if pending := self._choose(state, rows, step):
            return pending
        logits = self.model.forward(rows, state.cache, num_logits=len(step.tree))
        return state.sampler.launch(logits, step.tree, tokens, step.num_candidates)

    def _choose(self, state: SequenceState, rows: TokenTree, step: StepInput) -> Pending | None:
        """Has graphs choose the tokens of a step's tree, the last ones of `rows`; None if they cannot."""
        tree, tokens = step.tree, step.sequence.tokens
        wish = state.sampler.wish(tree, tokens, step.num_candidates)
        chosen = wish and self.model.choose(rows, state.cache, wish.kind, wish.choices, wish.change)
        if not (wish and chosen):
            return None
        scores = chosen.logits if wish.is_settled else chosen.logits.clone()
        return state.sampler.granted(chosen.tokens, scores, tree, tokens, step.num_candidates)

    def close(self, sequence: Sequence) -> None:
        self.states.pop(sequence.id).cache.release()
