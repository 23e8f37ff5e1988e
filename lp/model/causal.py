"""A Hugging Face causal language model that answers token trees, on one device.

Knows nothing of where a tree's rows come from, or of which tokens are chosen from the logits.

    R rows of a tree, L rows of all trees whose logits are wanted, V vocabulary
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.grammar.compiler import Grammars
from lp.kv_cache.cache import KVCache, KVMemory, LayerShape, RowsOnly
from lp.kv_cache.contiguous import ContiguousCache, ContiguousMemory
from lp.model import attention
from lp.model.attention import TreeRows, TreeStep
from lp.model.current_step import running
from lp.model.fast_forward import (
    PREFILL_CHUNK,
    BeforeAttention,
    Choose,
    Choosing,
    Computed,
    FastForward,
    ForwardFailed,
    SequenceRows,
)
from lp.model.gpu.device import attention_of_torch, current
from lp.model.heads.loaded import LoadedHeads
from lp.model.kernels import AttentionKind, resolve_kind
from lp.model.layers import head_dims
from lp.model.memory import Bound, make_memory, num_weight_bytes
from lp.model.own_attention import replace_attention, set_attention
from lp.model.quantization.parameter import QuantizedParameter, quantized_parameters, unpack_parameters
from lp.model.recurrent.kinds import attention_layers, recurrent_layers, replace_layers
from lp.platform.hardware import upload
from lp.tree import TokenTree

log = logging.getLogger("lookahead")


class CausalModel:
    """Wraps a transformers model, which is unchanged but for its attention function: that becomes tree attention.
    Recurrent layers, and attention outside of transformers' interface, get a forward that knows trees.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_length: int,
        eos: list[int],
        kind: AttentionKind = AttentionKind.auto,
        layers: list[int] | None = None,
    ):
        """max_length: the most tokens that a sequence may have. eos: end-of-sequence tokens. layers: indices of the
        layers that this rank holds; None means all of them.

        Raises UnsupportedAttention for a kind of attention that cannot be used here.
        """
        attention.register()
        replace_attention(model, max_length)
        set_attention(model, attention.NAME)
        self.model = model.eval()
        self.max_length, self.eos = max_length, eos
        self.grammars: Grammars | None = None  # for the checkpoint's tokenizer
        self.second: CausalModel | None = None  # with which its logits are compared
        self.heads: LoadedHeads | None = None
        # Replaces the model's own forward.
        self.fast: FastForward | None = None
        self.weight_bytes = num_weight_bytes(model)
        self.device, self.dtype, self._is_on_gpu = model.device, model.dtype, model.device.type == "cuda"
        text_config = model.config.get_text_config(decoder=True)
        self.num_layers: int = text_config.num_hidden_layers
        self.layers = list(range(self.num_layers)) if layers is None else layers
        # Those of the layers that have keys and values, and those that have a state.
        self.attention_layers = attention_layers(model.config, self.layers)
        self.recurrent_layers = replace_layers(model)
        # Whether any layer of the model has a state, from which no token can be taken out: all stages of a pipeline
        # keep and drop tokens alike.
        self.is_recurrent = bool(recurrent_layers(model.config))
        # Where caches lie, and the shapes of the layers that are held here, known once the model has been run.
        self.memory: KVMemory
        self.open_memory(len(self.attention_layers))
        self.cache_shapes: dict[int, LayerShape] = {}
        self.vocab_size: int = text_config.vocab_size
        self.attention_kind = self._find_attention_kind(kind)

    def _find_attention_kind(self, kind: AttentionKind) -> AttentionKind:
        """Which kind of attention a setting means here."""
        dims = sorted({dim for layer in self.attention_layers for dim in head_dims(self.model.config, layer)})
        return resolve_kind(kind, self.device, self.dtype, dims)

    @property
    def hidden_size(self) -> int:
        """The size of the hidden states that the output embedding reads, which not every pipeline stage has."""
        config = self.model.config.get_text_config(decoder=True)
        return getattr(self.model.get_output_embeddings(), "in_features", config.hidden_size)

    @property
    def state_bytes(self) -> int:
        """The bytes of one state of each recurrent layer that is held here."""
        like = torch.empty(0, dtype=self.dtype)
        states = [layer.begin(like) for layer in self.recurrent_layers]
        return sum(part.numel() * part.element_size() for state in states for part in state)

    @property
    def is_first_stage(self) -> bool:
        """Whether the embedding is held here, so that no hidden states come in."""
        return self.layers[0] == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the head is held here, so that logits and not hidden states come out."""
        return self.layers[-1] == self.num_layers - 1

    @property
    def numbers_per_token(self) -> int:
        """Of one token's keys and values in all layers that are held here."""
        return sum(shape.numbers for shape in self.cache_shapes.values())

    def make_cache(self, capacity: int = 0) -> KVCache:
        """Returns an empty cache. It grows as tokens are added.

        capacity: tokens that it is likely to have.
        """
        return self.memory.open(min(capacity, self.max_length))

    def open_memory(self, num_layers: int) -> None:
        """Gives the model memory without a bound. num_layers: that have keys and values of their own."""
        self.memory = ContiguousMemory(num_layers)
        self.memory.keeps_states = self.is_recurrent

    def bound_memory(self, bound: Bound) -> None:
        """Gives the model, which has been run, its memory for keys and values.

        Raises ValueError if one sequence does not fit.
        """
        share = bound.share_of_states(self.state_bytes) if self.is_recurrent else 0.0
        rest = bound._replace(size=bound.size - share)
        self.memory = make_memory(rest, self.cache_shapes, self.num_layers, self.dtype, self.device, self.max_length)
        self.memory.keeps_states, self.memory.state_bytes = self.is_recurrent, share

    @property
    def has_quantized_weights(self) -> bool:
        return bool(quantized_parameters(self.model))

    def unpack_weights(self) -> None:
        """Puts plain weights in the place of quantised ones."""
        unpack_parameters(self.model)
        self.weight_bytes = num_weight_bytes(self.model)

    def free_weights(self) -> None:
        """Frees the weights if the fast forward has copies of its own. The model's own forward cannot run any more."""
        if self.fast and self.fast.owns_weights:
            for weight in self.model.parameters():
                if isinstance(weight, QuantizedParameter):
                    weight.free()
                else:
                    weight.data = weight.new_empty(0)

    def forward(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        """Runs the rows of one sequence; returns float32 logits [num_logits, V] of the last ones. See forward_many."""
        return self.forward_many([SequenceRows(tree, cache, num_logits)])

    def forward_many(self, given: Sequence[SequenceRows]) -> Tensor:
        """Runs the rows of some sequences; returns float32 logits [L, V], those of the first sequence first.

        The rows' keys and values lie in the caches behind the prefixes; `KVCache.keep` then says which of them stay.
        """
        self.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
        return self.run(given)

    def run(self, given: Sequence[SequenceRows]) -> Tensor:
        """`forward_many` for rows whose memory is reserved."""
        if self.fast:
            try:
                if not self._is_on_gpu:
                    return self.fast(given)
                with current(self.device):
                    return self.fast(given)
            except ForwardFailed as error:
                log.warning("from here on the model's own forward runs, which is slower: %s", error)
                self.fast = None
        return self.forward_eager(given)[0]

    def run_stage(self, given: Sequence[SequenceRows], incoming: Tensor | None) -> Tensor:
        """Runs the layers of a stage of a pipeline: logits as `forward_many` returns them in the last stage, and in all
        others the rows' hidden states [R, hidden], in an order of its own.

        incoming: what the stage before has returned for the same rows; None in the first stage. There must be memory
        for the rows.
        """
        if self.fast:
            with current(self.device):
                return self.fast.run_stage(given, incoming)
        logits, step = self.forward_eager(given, None if incoming is None else incoming[None])
        if self.is_last_stage:
            return logits
        assert step.outgoing is not None, "a stage before the last has stand-ins for later layers"
        return step.outgoing[0]

    @property
    def prefill_chunk(self) -> int:
        """Rows of a prompt that a forward should be given at a time."""
        return self.fast.prefill_chunk if self.fast else PREFILL_CHUNK

    @property
    def runs_by_layer(self) -> bool:
        return self.fast is not None and self.fast.runs_by_layer

    def forward_by_layer(self, tree: TokenTree, cache: KVCache, before_attention: BeforeAttention) -> None:
        """See FastForward.run_by_layer. There must be memory for the rows."""
        assert self.fast is not None
        with current(self.device):
            self.fast.run_by_layer(SequenceRows(tree, cache, 0), before_attention)

    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        """See FastForward. Nothing happens where the forward does not choose tokens."""
        if self.fast is not None and self.fast.chooses_tokens:
            with current(self.device):
                self.fast.capture_choosing(kinds)

    def compute(self, given: Sequence[SequenceRows], how: Sequence[Choosing | None]) -> Computed | None:
        """See FastForward. Returns None, with nothing done, where the forward does not choose tokens."""
        if self.fast is None or not self.fast.chooses_tokens:
            return None
        self.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
        with current(self.device):
            return self.fast.compute(given, how)

    @torch.inference_mode()
    def forward_eager(self, given: Sequence[SequenceRows], incoming: Tensor | None = None) -> tuple[Tensor, TreeStep]:
        """Runs the model's own `forward` on the rows of some sequences; returns logits as `forward_many` does, and the
        step, which lists the layers that have used it.

        incoming: hidden states [1, R, hidden] for the first layer, if another pipeline stage has the embedding.
        """
        self.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
        step, tokens = self.to_device(given)
        step.incoming, answered, positions = incoming, answered_rows(given), step.positions
        with current(self.device), attention_of_torch(self.device), running(step):
            output = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                past_key_values=RowsOnly(self.num_layers, positions),
                use_cache=False,  # it need not make a cache, nor know the kind of this one
                # A model that is asked for no logits may compute all of them.
                logits_to_keep=upload(answered if len(answered) else np.zeros(1, np.int64), self.device),
            )
        if not self.cache_shapes and isinstance(cache := given[0].cache, ContiguousCache):
            self.cache_shapes = cache.shapes
        return output.logits[0, : len(answered)].float(), step

    def to_device(self, given: Sequence[SequenceRows]) -> tuple[TreeStep, Tensor]:
        """Moves tokens, positions and visibility to the device in one transfer; returns the step and the tokens."""
        inputs = [rows.tree.inputs(rows.cache.length) for rows in given]
        on_device = upload(np.concatenate([one.ravel() for one in inputs]), self.device)
        parts, tokens = [], []
        for rows, numbers in zip(given, on_device.split([one.size for one in inputs]), strict=True):
            of_rows = numbers.view(len(rows.tree), -1)
            places = of_rows[:, 1].contiguous(), of_rows[:, 2:].bool()
            num_certain = len(rows.tree) - rows.num_logits
            parts.append(TreeRows(rows.cache, rows.cache.length, *places, self.dtype, rows.tree, num_certain))
            tokens.append(of_rows[:, 0])
        return TreeStep(self.attention_kind, parts=parts), torch.cat(tokens)


def answered_rows(given: Sequence[SequenceRows]) -> np.ndarray:
    """int64 [L] those of all rows whose logits are wanted."""
    ends = np.cumsum([len(rows.tree) for rows in given])
    return np.concatenate([np.arange(end - rows.num_logits, end) for rows, end in zip(given, ends, strict=True)])
