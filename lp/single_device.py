"""The runner of a single device: one model, and for every sequence a KV cache, a sampler and the rows computed last."""

from __future__ import annotations

from collections.abc import Iterator

from lp.model.causal import CausalModel
from lp.model.kv_cache import KVCache
from lp.request import Sequence
from lp.runner import ForwardRunner, StepInput
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree, chain, descend
from lp.verification import Answers


class SequenceState:
    """What a device holds of one sequence.

    cache: keys and values of the sequence's first tokens. last: the rows computed last, whose keys and values still
    stand behind those.
    """

    def __init__(self, cache: KVCache, sampler: Sampler):
        self.cache = cache
        self.sampler = sampler
        self.last = chain([])

    @staticmethod
    def begin(sequence: Sequence, model: CausalModel) -> SequenceState:
        """An empty cache, with room for the sequence, and a sampler."""
        sampler = Sampler(sequence.sampling, sequence.prompt_length, model.eos, model.vocab_size, str(model.device))
        return SequenceState(model.make_cache(len(sequence.tokens) + 1), sampler)

    def keep_accepted(self, tokens: list[int]) -> None:
        """Keeps the longest path of the rows computed last that became part of the sequence.

        The sequence's last token is never among them: its answer is what the next step is for.
        """
        if self.cache.length >= len(tokens):  # the sequence was resumed from an earlier token
            self.cache.length, self.last = len(tokens) - 1, chain([])
        missing = tokens[self.cache.length : -1]
        start = [0] if len(self.last) else []
        levels = descend(self.last, start, lambda depth, _: missing[depth] if depth < len(missing) else None)
        self.cache.keep(self.last.path(levels[-1][0]) if levels else [])
        self.last = chain([])

    def prefill(self, tokens: list[int], most_rows: int) -> Iterator[TokenTree]:
        """What the cache lacks of the sequence, in parts that are to be computed one by one.

        It ends when at most `most_rows` tokens are left, which can be the trunk of a tree.
        """
        self.keep_accepted(tokens)
        while len(trunk := tokens[self.cache.length : -1]) > most_rows:
            yield chain(trunk[:most_rows])
            self.cache.keep(range(most_rows))

    def attach(self, tree: TokenTree, tokens: list[int]) -> TokenTree:
        """Hangs the tree under the trunk that the cache still lacks; the result is what to compute last."""
        self.last = tree.under(tokens[self.cache.length : -1])
        return self.last


class SingleDevice(ForwardRunner):
    """One model on one device."""

    def __init__(self, model: CausalModel, prefill_chunk: int = 512):
        """prefill_chunk: most rows of a prompt in one forward, which bounds the memory that attention needs."""
        super().__init__()
        self.model = model
        self.prefill_chunk = prefill_chunk
        self.states: dict[str, SequenceState] = {}

    @property
    def cache_bytes(self) -> int:
        return sum(state.cache.num_bytes for state in self.states.values())

    def open(self, sequence: Sequence) -> None:
        self.states[sequence.id] = SequenceState.begin(sequence, self.model)

    def forward(self, step: StepInput) -> Answers:
        """Feeds what the cache lacks of the sequence as a trunk: the prompt, or tokens that other ranks computed."""
        tokens, state = step.sequence.tokens, self.states[step.sequence.id]
        for part in state.prefill(tokens, self.prefill_chunk):
            self.model.forward(part, state.cache, num_logits=1)
        rows = state.attach(step.tree, tokens)
        logits = self.model.forward(rows, state.cache, num_logits=len(step.tree))
        return state.sampler.answers(logits, step.tree, tokens, step.num_candidates)

    def close(self, sequence: Sequence) -> None:
        self.model.release(self.states.pop(sequence.id).cache)
