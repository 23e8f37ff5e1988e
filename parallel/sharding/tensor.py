"""Tensor parallelism: the weights of every layer are split among the ranks (Shoeybi et al., arXiv 1909.08053).

The split is applied from outside to a Hugging Face model, by a plan (plans.py). A column-parallel module computes a
slice of its outputs. The row-parallel module after it takes that slice as its inputs, and an all-reduce adds up the
outputs of the ranks. Most layers need two all-reduces. The vocabulary is split as well: the embedding then needs one
all-reduce and the logits one all-gather. Every rank gets the whole logits, so it decodes as a single device does.

Slices need not be equal (parallel/sharding/slices.py): ranks hold whole attention heads, and a key/value head is
repeated if there are more ranks than key/value heads. A rank's KV cache holds the rank's own key/value heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lp.model.checkpoint import Reader
from lp.model.exactness import UnsupportedArchitecture
from lp.model.gpu.cuda_graphs import Capture, capture_on_gpu
from lp.model.kernels import UnsupportedAttention
from lp.model.layers import head_counts
from lp.model.program.group import all_gather, all_reduce, row_in_part
from lp.model.program.record import recorder
from lp.model.quantization.model import empty_model
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.quantize import Weights
from lp.model.quantization.weight import GROUP
from parallel.comm.base import Collectives
from parallel.errors import RankLost
from parallel.sharding.plans import base_name, has_tensor_plan, tensor_plan
from parallel.sharding.slices import (
    COLUMN,
    COLUMN_WHOLE_OUTPUT,
    EXPERTS,
    ROW,
    ROW_WHOLE_INPUT,
    STYLES,
    Slices,
    count_own_heads,
    has_number_per_head,
    is_known_mixture,
    shards,
    slices,
)
from parallel.sharding.weights import fill, has_quantized, name_of

# The names of styles that leave a module whole on every rank begin with this.
REPLICATED = "replicate"
# Of a module whose own parameters are split by styles of their own.
LOCAL = "local_params"
# Of the projection to the latent numbers of all heads' keys and values, which is whole on every rank.
LATENT = "mla_kv_a_proj"
# Bytes to whose multiples rows of experts' weights must be aligned for torch's grouped products.
ALIGNMENT = 16


def read_sharded(collectives: Collectives) -> Reader:
    """The Reader of one rank of a tensor-parallel group. It raises ValueError for a model that cannot be split so."""

    def read(
        path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, weights: Weights
    ) -> tuple[PreTrainedModel, list[int]]:
        rank, degree = collectives.rank, collectives.num_ranks
        check_degree(config, degree)
        model = empty_model(config, dtype)
        styles = plan(model)
        is_packed = device.type == "cpu" and has_quantized(path, config, weights)
        cut = slices(model, styles, degree, multiple=GROUP if is_packed else 1)
        count_own_heads(model, styles, rank, degree)
        fill(model, path, config, dtype, device, shards(model, styles, cut, rank), weights)
        connect(model, styles, cut, collectives)
        return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))

    return read


def check_degree(config: PreTrainedConfig, degree: int) -> None:
    """Checks that a model can be split among `degree` ranks.

    Raises ValueError if a rank would have no attention head, or UnsupportedArchitecture if the model has no plan.
    """
    name = (config.architectures or [config.model_type])[0]
    if not has_tensor_plan(config):
        raise UnsupportedArchitecture(f"{name} has no tensor-parallel plan; use parallel=lp, or parallel=single")
    layers = range(config.get_text_config(decoder=True).num_hidden_layers)
    for num_query, num_key_value in dict.fromkeys(head_counts(config, layer) for layer in layers):
        _check_heads(name, num_query, num_key_value, degree)


def _check_heads(name: str, num_query: int, num_key_value: int, degree: int) -> None:
    """Raises ValueError for numbers of heads that `degree` ranks cannot share."""
    if degree > num_query:
        raise ValueError(
            f"parallel.tp={degree} is more than the {num_query} attention heads of {name}, so that a rank would have "
            f"none: use parallel.tp={num_query} or less, or parallel=lp"
        )
    if num_query % num_key_value:
        raise ValueError(
            f"{name} has {num_query} attention heads, which its {num_key_value} key/value heads cannot share equally: "
            "correct num_attention_heads or num_key_value_heads in config.json"
        )


def plan(model: PreTrainedModel) -> dict[str, str]:
    """The style of each module that is split, by the module's name.

    Raises UnsupportedArchitecture for an unknown style, and for a plan that fits none of the model's modules.
    """
    base, patterns = base_name(model), tensor_plan(model)
    parts = {**dict(model.named_modules()), **dict(model.named_parameters())}
    embedding, _ = _embeddings(model)
    styles = {}
    for name, part in parts.items():
        style = next((patterns[p] for p in patterns if re.fullmatch(_expression(p), name)), REPLICATED)
        is_whole = style == LATENT or style.startswith((REPLICATED, LOCAL))
        if is_whole or part is embedding:  # the head decides on the embedding, whatever the plan
            continue
        if style == COLUMN and isinstance(part, nn.Parameter) and has_number_per_head(model.config, part):
            continue  # it is split with the heads
        if style == EXPERTS and is_known_mixture(part):
            styles[name] = style
            continue
        if styles.get(name.rpartition(".")[0]) == EXPERTS:  # the weights of experts are split with their module
            continue
        if style not in STYLES or not isinstance(part, nn.Linear | Conv1D):
            raise UnsupportedArchitecture(
                f"{type(model).__name__} splits {name} in the style {style!r}, which tensor parallelism does not know "
                "here; use parallel=lp, or parallel=single"
            )
        styles[name] = style
    if not any(name.startswith(f"{base}.") for name in styles):
        raise UnsupportedArchitecture(
            f"{type(model).__name__} has none of the modules that its tensor-parallel plan names; use "
            "parallel=lp, or parallel=single"
        )
    return _with_embedding(model, styles)


def _expression(pattern: str) -> str:
    """A regular expression for a pattern of the plan, in which * is the index of a layer."""
    return re.escape(pattern).replace(r"\*", r"\d+")


def _with_embedding(model: PreTrainedModel, styles: dict[str, str]) -> dict[str, str]:
    """Adds the embedding if the head is split."""
    embedding, head = _embeddings(model)
    return {**styles, name_of(model, embedding): COLUMN} if name_of(model, head) in styles else styles


def _embeddings(model: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    return embedding, head


def connect(model: PreTrainedModel, styles: Mapping[str, str], cut: Slices, collectives: Collectives) -> None:
    """Adds the collectives to the split modules of a model whose weights have been read."""
    for name, style in styles.items():
        module = model.get_submodule(name)
        if isinstance(module, nn.Embedding):
            _split_vocabulary(model, module, cut[name][collectives.rank].start, collectives)
        if style == COLUMN_WHOLE_OUTPUT:
            module.register_forward_hook(_gather(cut[name], collectives))
        if style == ROW_WHOLE_INPUT:
            module.register_forward_pre_hook(_take(cut[name][collectives.rank]))
        if style in (ROW, ROW_WHOLE_INPUT, EXPERTS):
            module.register_forward_hook(_reduce(collectives))
            if (bias := getattr(module, "bias", None)) is not None and collectives.rank != 0:  # rank 0 adds it, once
                if isinstance(module, Conv1D):  # which cannot be without
                    bias.data.zero_()
                else:
                    module.register_parameter("bias", None)
        if isinstance(module, Conv1D):
            module.nf = module.weight.shape[1]
        if style == EXPERTS and module.has_bias and collectives.rank != 0:
            module.get_parameter("down_proj_bias").data.zero_()
        if style == EXPERTS and any(len(own) * model.dtype.itemsize % ALIGNMENT for own in cut[name]):
            model.set_experts_implementation("eager")
    model.register_forward_hook(_synchronize(collectives))


def _split_vocabulary(model: PreTrainedModel, embedding: nn.Embedding, first: int, collectives: Collectives) -> None:
    """Makes tokens of other ranks look up a row of zeros, so that the sum over the ranks is the embedding.

    first: the first token of this rank. A tied head still shares the embedding's memory: it is all rows except the row
    of zeros.
    """
    table, head = embedding.weight, _embeddings(model)[1]
    size = table.shape[0]
    if isinstance(table, QuantizedParameter):
        embedding.weight = nn.Parameter(table.with_zeros(), requires_grad=False)
    else:
        is_tied = head.weight is table
        zeros = table.new_zeros(1, table.shape[1])
        embedding.weight = nn.Parameter(torch.cat([table, zeros]), requires_grad=False)
        if is_tied:
            head.weight = nn.Parameter(embedding.weight[:size], requires_grad=False)
    embedding.num_embeddings = size + 1
    embedding.padding_idx = None  # it may be another rank's token

    def localise(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (row_in_part(args[0], first, size), *args[1:])

    embedding.register_forward_pre_hook(localise)
    embedding.register_forward_hook(_reduce(collectives))


def _reduce(collectives: Collectives) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return all_reduce(output, collectives)

    return hook


def _synchronize(collectives: Collectives) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if recorder() is None:
            collectives.synchronize()

    return hook


def _gather(held: list[range], collectives: Collectives) -> Callable[..., Tensor]:
    """Joins the outputs of all ranks."""
    sizes = tuple(len(own) for own in held)

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return all_gather(output, sizes, collectives)

    return hook


def _take(own: range) -> Callable[..., tuple[Tensor, ...]]:
    """Leaves a module those of its inputs that this rank holds."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0][..., own.start : own.stop], *args[1:])

    return hook


def capture_together(collectives: Collectives) -> Capture:
    """The Capture of one of the ranks that share a model. All of them call it at the same time.

    It raises RuntimeError on all ranks if one cannot capture: the others would wait for it in their next warm-up.
    """

    def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
        traffic = replace(collectives.traffic)

        def counted() -> Tensor:
            nonlocal traffic
            before = replace(collectives.traffic)
            result = run()
            traffic = collectives.traffic - before  # of the last run, which is the captured one
            return result

        captured, failure = None, RuntimeError("another of the ranks that share the model cannot capture it")
        try:
            captured = capture_on_gpu(counted, pool)
        except RankLost:
            raise
        except (RuntimeError, UnsupportedAttention) as error:
            failure = error
        if not collectives.agree(captured is not None) or captured is None:
            raise failure
        replay, result = captured

        def replay_with_others() -> None:
            replay()
            collectives.replayed(replace(traffic, seconds=0.0))

        return replay_with_others, result

    return capture
