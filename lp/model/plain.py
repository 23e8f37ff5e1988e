"""Plain decoding: transformers' own forward and cache, for models that cannot answer token trees exactly.

Its steps are chains: rows that follow one another, of which the first ones are kept. Sequences are run one after the
other, and a text that goes back is computed again from its beginning. Knows nothing of why a model needs this.

    R rows of a chain, V vocabulary
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.kv_cache.cache import PAGE, KVCache, KVMemory, LayerShape, pages_of
from lp.model.causal import CausalModel
from lp.model.errors import described
from lp.model.exactness import UnsupportedArchitecture
from lp.model.fast_forward import PREFILL_CHUNK, SequenceRows
from lp.model.gpu.device import attention_of_torch, current
from lp.model.kernels import AttentionKind
from lp.model.memory import Bound, count_pages
from lp.model.own_attention import set_attention
from lp.model.probes import Probes, spread_probes
from lp.model.reference import FLOOR, NUM_CACHED, relative_error

# The allowed error of a row that is computed after a cache, as a multiple of that of a few roundings.
MULTIPLE = 10.0
# Tokens of the texts by which the check is made, and their number.
NUM_TOKENS, NUM_TEXTS = 12, 3
# What transformers' code raises when it is asked for what it cannot do.
FAILURES = (TypeError, AttributeError, ValueError, LookupError, RuntimeError)
# Two lengths at which a sequence's memory is measured.
SHORT, LONG = 16, 48


class PlainCache(KVCache):
    """What transformers' forward keeps of one sequence.

    tokens: all that it has seen; those behind the cached ones are the rows of the step at hand. state: its cache, by
    the name of the argument under which the forward takes it; empty if there is none, so that all is computed again.
    """

    def __init__(self, memory: PlainMemory):
        super().__init__()
        self.tokens: list[int] = []
        self.state: dict[str, Any] = {}
        self._memory = memory
        self._num_pages = 0

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in _tensors(self.state))

    @property
    def is_written(self) -> bool:
        return bool(self.state)

    def has_room(self, num_tokens: int) -> bool:
        return pages_of(num_tokens) <= self._num_pages

    def reserve(self, num_rows: int) -> None:
        self._memory.reserve([(self, num_rows)])

    def grow(self, num_pages: int) -> None:
        """Notes that it may have so many pages."""
        self._num_pages = max(self._num_pages, num_pages)

    def shrink(self, num_pages: int) -> None:
        self._num_pages = min(self._num_pages, num_pages)

    def _keep(self, rows: Sequence[int]) -> None:
        assert [*rows] == [*range(len(rows))], "the rows of a chain follow one another"
        self.length += len(rows)

    def forget_rows(self) -> None:
        """Forgets what lies behind the cached tokens. The state cannot go back: it is computed again."""
        if len(self.tokens) > self.length:
            self.tokens, self.state = self.tokens[: self.length], {}

    @torch.inference_mode()
    def _fork(self, length: int) -> PlainCache:
        other = self._memory.open()
        self._memory.reserve([(self, 0), (other, length)])
        other.tokens, other.length = self.tokens[:length], length
        if len(self.tokens) == length:
            other.state = copy.deepcopy(self.state)
        return other

    def _release(self) -> None:
        self.tokens, self.state = [], {}
        self.length = self._num_pages = 0

    # Several ranks do not decode plainly, so none of this is asked for.

    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("transformers' own attention writes to its own cache")

    def seen_by(self, num_rows: int, layer: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("transformers' own attention reads its own cache")

    def export(self, begin: int, end: int) -> Tensor:
        raise AssertionError("a plain cache stays where it is")

    def _write(self, numbers: Tensor, num_tokens: int, shapes: Mapping[int, LayerShape]) -> None:
        raise AssertionError("a plain cache stays where it is")

    def read_layer(self, layer: int, begin: int, end: int) -> Tensor:
        raise AssertionError("a plain cache stays where it is")

    def write_layer(self, layer: int, begin: int, end: int, numbers: Tensor) -> None:
        raise AssertionError("a plain cache stays where it is")


class PlainMemory(KVMemory):
    """See KVMemory. It counts pages; transformers allocates."""

    def open(self, capacity: int = 0) -> PlainCache:
        cache = PlainCache(self)
        self._add(cache)
        return cache

    def _make_room(self, cache: KVCache, num_tokens: int) -> None:
        assert isinstance(cache, PlainCache)
        self._free_pages(pages_of(num_tokens), cache)
        cache.grow(pages_of(num_tokens))


class PlainModel(CausalModel):
    """A model with transformers' own attention and cache, which answers chains alone.

    takes_chunks: whether several rows can follow what is cached in one forward; else they are run one by one.
    """

    def __init__(self, model: PreTrainedModel, max_length: int, eos: list[int]):
        super().__init__(model, max_length, eos)
        set_attention(model, "sdpa" if model._supports_sdpa else "eager")
        self.memory, self.takes_chunks = PlainMemory(sys.maxsize), True
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._takes_num_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def _find_attention_kind(self, kind: AttentionKind) -> AttentionKind:
        return AttentionKind.eager

    @property
    def prefill_chunk(self) -> int:
        return PREFILL_CHUNK if self.takes_chunks else self.max_length

    def bound_memory(self, bound: Bound) -> None:
        """See CausalModel. A page is as large as in the first of a sequence, which has what does not grow."""
        short, long = (self._bytes_of(length) for length in (SHORT, LONG))
        per_token = (long - short) / (LONG - SHORT)
        page_bytes = max(1.0, short + per_token * (PAGE - SHORT))
        self.memory = PlainMemory(count_pages(bound, page_bytes, self.device, self.max_length))

    def _bytes_of(self, num_tokens: int) -> int:
        """Bytes of a sequence's cache."""
        return sum(tensor.nbytes for tensor in _tensors(self.run_tokens([0] * num_tokens, num_tokens, 1, {})[1]))

    def run(self, given: Sequence[SequenceRows]) -> Tensor:
        return torch.cat([self._run_chain(rows) for rows in given])

    def _run_chain(self, rows: SequenceRows) -> Tensor:
        """Float32 logits [num_logits, V] of the last rows of a chain, which are added to what the cache has seen."""
        cache, tree = rows.cache, rows.tree
        assert isinstance(cache, PlainCache) and tree.num_trunk == len(tree), "a plain model answers chains alone"
        cache.forget_rows()
        cache.tokens += tree.tokens.tolist()
        num_new = len(tree) if cache.state else len(cache.tokens)
        each = num_new if self.takes_chunks or not cache.state else 1
        parts: list[Tensor] = []
        for end in range(len(cache.tokens) - num_new + each, len(cache.tokens) + 1, each):
            num_logits = min(each, max(0, rows.num_logits - (len(cache.tokens) - end)))
            logits, cache.state = self.run_tokens(cache.tokens[:end], each, num_logits, cache.state)
            parts.append(logits)
        return torch.cat(parts)

    @torch.inference_mode()
    def run_tokens(
        self, tokens: list[int], num_new: int, num_logits: int, state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Runs the last `num_new` tokens as `generate` does, after a state that has seen those before them; returns
        float32 logits [num_logits, V] of the last ones, and the next state.
        """
        model: Any = self.model  # what `generate` calls is not in its type
        inputs = torch.tensor([tokens], device=self.device)
        given: dict[str, Any] = {"use_cache": True, **state}
        if self._takes_positions:
            given["position_ids"] = torch.arange(len(tokens), device=self.device)[None]
        arguments = model.prepare_inputs_for_generation(
            inputs, next_sequence_length=num_new, is_first_iteration=not state, **given
        )
        if self._takes_num_logits:
            arguments["logits_to_keep"] = max(1, num_logits)
        with current(self.device), attention_of_torch(self.device):
            output = model(**arguments, return_dict=True)
        kept = output.logits[0, output.logits.shape[1] - num_logits :].float()
        return kept, model._update_model_kwargs_for_generation(output, {})


def make_plain(
    model: PreTrainedModel, max_length: int, eos: list[int], probes: Probes | None, reason: str
) -> PlainModel:
    """A plain model whose rows are answered alike with a cache and without.

    probes: texts as tokens; None or none stands for made-up ones. reason: why it answers no trees. Raises
    UnsupportedArchitecture if plain decoding would not be exact either.
    """
    name = type(model).__name__
    try:
        plain = PlainModel(model, max_length, eos)
        texts = (probes or spread_probes(plain.vocab_size))[:NUM_TEXTS]
        errors = _errors_of(plain, texts, each=1)
    except FAILURES as error:
        raise UnsupportedArchitecture(f"{reason}; nor can {name} be decoded plainly: {described(error)}") from error
    allowed = MULTIPLE * FLOOR[plain.dtype]
    if max(errors) > allowed:
        raise UnsupportedArchitecture(
            f"{reason}; nor can {name} be decoded plainly: with its cache it gives other logits than without "
            f"(relative error {max(errors):.2g})"
        )
    try:
        plain.takes_chunks = max(_errors_of(plain, texts, each=NUM_TOKENS)) <= allowed
    except FAILURES:
        plain.takes_chunks = False
    return plain


def _errors_of(model: PlainModel, texts: Probes, each: int) -> list[float]:
    """The largest relative error of the rows of each text after the first, when so many are run at a time."""
    errors = []
    for text in texts:
        tokens = [text[place % len(text)] % model.vocab_size for place in range(NUM_TOKENS)]
        expected, _ = model.run_tokens(tokens, NUM_TOKENS, NUM_TOKENS, {})
        _, state = model.run_tokens(tokens[:NUM_CACHED], NUM_CACHED, 1, {})
        found = []
        for begin in range(NUM_CACHED, NUM_TOKENS, each):
            end = min(begin + each, NUM_TOKENS)
            num_new = end - begin if state else end
            logits, state = model.run_tokens(tokens[:end], num_new, end - begin, state)
            found.append(logits)
        rows = zip(torch.cat(found), expected[NUM_CACHED:], strict=True)
        errors.append(max(relative_error(row, own) for row, own in rows))
    return errors


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a cache of transformers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif type(value).__module__.startswith("transformers"):
        yield from _tensors(vars(value))
