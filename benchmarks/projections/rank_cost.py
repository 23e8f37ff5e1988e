"""What a rank holds, computes and sends in each mode of parallelism, from a model's configuration alone.

The model is built without memory for its weights and cut by the plans of parallel/sharding/tensor.py and
parallel/sharding/stages.py; the rest is counting. Where ranks differ, the highest cost is given. A row costs two
operations for each weight that it is multiplied with and, for each layer, query head and key that it may see, four
operations for each element of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmarks.shared.shapes import model_of_shape
from lp.methods.ngram_pool import Continuation, merge
from lp.methods.window import Window
from lp.model.recurrent.kinds import attention_layers
from lp.tree import TokenTree, TreeBuilder
from parallel import build
from parallel.comm.rows import HEADER
from parallel.mesh import Mode, resolve_degrees
from parallel.runners.partition import partition
from parallel.sharding.slices import (
    COLUMN,
    COLUMN_WHOLE_OUTPUT,
    EXPERTS,
    PACKED_COLUMN,
    Slices,
    own_heads,
    shards,
    slices,
)
from parallel.sharding.stages import cut_stage
from parallel.sharding.tensor import plan


@dataclass(frozen=True)
class RankCost:
    """What one rank costs.

    rows: rows of its part of the tree. flops: operations of a step. collectives: those of a step that follow one
    another; a pipeline's message counts as one. bytes_sent: payload that the rank sends in a step.
    """

    mode: str
    ranks: int
    weight_bytes: int
    cache_bytes: int
    rows: int
    flops: int
    collectives: int
    bytes_sent: int


@dataclass(frozen=True)
class RankShare:
    """What one rank holds of a model, and what each row costs it.

    multiplied: weights that each row is multiplied with. windows: the sliding window of each layer that has attention,
    or None. collectives: those of a step within the replica. sent: numbers that the rank sends in them for each row.
    """

    weight_bytes: int
    multiplied: int
    windows: list[int | None]
    query_heads: int
    kv_heads: int
    head_dim: int
    collectives: int
    sent: int

    def cache_bytes(self, context: int, itemsize: int) -> int:
        """Bytes of the keys and values of `context` tokens."""
        return 2 * context * len(self.windows) * self.kv_heads * self.head_dim * itemsize

    def flops(self, rows: int, context: int) -> int:
        """Operations of a forward pass of the rows on top of a cached context."""
        keys = sum(rows + (context if window is None else min(context, window - 1)) for window in self.windows)
        return 2 * rows * self.multiplied + 4 * rows * keys * self.query_heads * self.head_dim


def full_tree(window: int, ngram: int, guesses: int) -> TokenTree:
    """The largest tree of lookahead decoding: all cells of the window, and guesses that have no row in common."""
    builder = TreeBuilder(0)
    merge(builder, [Continuation((token,) * (ngram - 1), "pool") for token in range(guesses)], ngram - 1)
    cells = Window(window, ngram - 1, [0], seed=0)
    cells.cells = [[0] * window for _ in range(ngram - 1)]
    cells.plan(builder)
    return builder.build()


def cost_of(
    config: PreTrainedConfig, dtype: torch.dtype, degrees: Mapping[str, int], tree: TokenTree, context: int
) -> RankCost:
    """The cost of the rank with the highest cost. degrees: of lp, tp and pp, by axis.

    Raises ValueError if the degrees cannot be combined, or the model cannot be split so.
    """
    resolve_degrees(Mode.auto, degrees, math.prod(degrees.values()))
    lp, tp, pp = (degrees.get(axis, 1) for axis in ("lp", "tp", "pp"))
    rows = max(len(part) for part in partition(tree, lp))
    shares = [share_of(config, dtype, tp, stage, pp) for stage in range(pp)]
    collectives, sent = shares[0].collectives, shares[0].sent * rows * dtype.itemsize
    if lp * tp > 1:
        collectives, sent = collectives + 1, sent + 4 * (HEADER + rows)
    if pp > 1:
        collectives, sent = pp, _sent_in_pipeline(config, dtype, pp, rows)
    return RankCost(
        mode=" x ".join(f"{axis}={degree}" for axis, degree in degrees.items() if degree > 1) or "single",
        ranks=lp * tp * pp,
        weight_bytes=max(share.weight_bytes for share in shares),
        cache_bytes=max(share.cache_bytes(context, dtype.itemsize) for share in shares),
        rows=rows,
        flops=max(share.flops(rows, context) for share in shares),
        collectives=collectives,
        bytes_sent=sent,
    )


def share_of(config: PreTrainedConfig, dtype: torch.dtype, tp: int = 1, stage: int = 0, pp: int = 1) -> RankShare:
    """The largest share of `tp` ranks, or that of one stage of `pp`; only one of the two may be above 1.

    Raises ValueError if the model cannot be split so.
    """
    build.check(config, {"tp": tp, "pp": pp})
    text: Any = config.get_text_config(decoder=True)
    model, layers = model_of_shape(config, dtype), list(range(text.num_hidden_layers))
    styles: dict[str, str] = {}
    if pp > 1:
        layers = cut_stage(model, stage, pp)
    if tp > 1:
        styles = plan(model)
    cut = slices(model, styles, tp)
    numels = [_numels(model, styles, cut, rank) for rank in range(tp)]
    heads = [own_heads(config, styles, rank, tp) for rank in range(tp)]
    split_embeddings = [name for name in styles if isinstance(model.get_submodule(name), nn.Embedding)]
    zero_row = text.hidden_size * dtype.itemsize * len(split_embeddings)
    sent = [_sent_for_a_row(model.get_submodule(name), style, cut[name]) for name, style in styles.items()]
    return RankShare(
        weight_bytes=max(_weight_bytes(model, held) for held in numels) + zero_row,
        multiplied=max(_multiplied(model, held, text) for held in numels),
        windows=[_sliding_window(text, layer) for layer in attention_layers(config, layers)],
        query_heads=max(len(share.query) for share in heads),
        kv_heads=max(len(share.key_value) for share in heads),
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        collectives=sum(number > 0 for number in sent),
        sent=sum(sent),
    )


def _sliding_window(text: Any, layer: int) -> int | None:
    """The sliding window of a layer; None if the layer sees all tokens."""
    types = getattr(text, "layer_types", None)
    return getattr(text, "sliding_window", None) if types is None or types[layer] == "sliding_attention" else None


def _numels(model: PreTrainedModel, styles: Mapping[str, str], cut: Slices, rank: int) -> dict[str, int]:
    """How many numbers of each parameter a rank holds."""
    split = shards(model, styles, cut, rank)
    return {
        name: sum(weight[own].numel() for own in split[name].bounds(weight.shape)) if name in split else weight.numel()
        for name, weight in model.named_parameters(remove_duplicate=False)
    }


def _weight_bytes(model: PreTrainedModel, numels: Mapping[str, int]) -> int:
    """Bytes of these numbers of each parameter, with tied ones counted once."""
    tied = {name for name, source in model.all_tied_weights_keys.items() if {name, source} <= set(numels)}
    sizes = {name: weight.element_size() for name, weight in model.named_parameters(remove_duplicate=False)}
    return sum(numel * sizes[name] for name, numel in numels.items() if name not in tied)


def _multiplied(model: PreTrainedModel, numels: Mapping[str, int], text: Any) -> int:
    """Weights that each row is multiplied with.

    Embeddings are only looked up, so they do not count. Of a layer's experts only those that a row is sent to count.
    """
    total = 0
    for name, weight in model.named_parameters(remove_duplicate=False):
        part = model.get_submodule(name.rpartition(".")[0])
        if weight.dim() < 2 or isinstance(part, nn.Embedding):
            continue
        is_experts = weight.dim() == 3 and not isinstance(part, nn.Conv1d)
        total += numels[name] * text.num_experts_per_tok // weight.shape[0] if is_experts else numels[name]
    return total


def _sent_for_a_row(module: nn.Module, style: str, held: list[range]) -> int:
    """How many numbers a split module's collective sends for a row; 0 if the module has no collective."""
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if style in (COLUMN, PACKED_COLUMN):
        return 0
    if style == COLUMN_WHOLE_OUTPUT:
        return max(map(len, held))
    if style == EXPERTS:
        return module.get_parameter("down_proj").shape[1]
    assert isinstance(module, nn.Linear | Conv1D)
    return module.nf if isinstance(module, Conv1D) else module.out_features


def _sent_in_pipeline(config: PreTrainedConfig, dtype: torch.dtype, pp: int, rows: int) -> int:
    """Bytes sent by the stage that sends most.

    A stage sends hidden states to the next one, the last stage sends answers to all others; both add headers.
    """
    hidden = rows * config.get_text_config(decoder=True).hidden_size * dtype.itemsize
    headers = 4 * HEADER * pp
    return max(hidden + headers, (pp - 1) * (4 * rows + headers))
