"""Tensor parallelism: the weights of every layer are split among the ranks (Shoeybi et al., arXiv 1909.08053).

The split is applied from outside to a Hugging Face model, by the model's own plan. A column-parallel module computes a
slice of its outputs. The row-parallel module after it takes that slice as its inputs, and an all-reduce adds up the
outputs of the ranks. Most layers need two all-reduces. The vocabulary is split as well if it divides: the embedding
then needs one all-reduce and the logits one all-gather. Every rank gets the whole logits, so it decodes as a single
device does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.checkpoint import Reader
from lp.model.exactness import UnsupportedArchitecture
from parallel.comm.base import Collectives
from parallel.shards.weight_files import Shard
from parallel.shards.weights import empty_model, fill, name_of

COLUMN, ROW = "colwise", "rowwise"
COLUMN_WHOLE_OUTPUT, ROW_WHOLE_INPUT = "colwise_gather_output", "rowwise_split_input"
STYLES = {COLUMN, ROW, COLUMN_WHOLE_OUTPUT, ROW_WHOLE_INPUT}
# The names of styles that leave a module whole on every rank begin with this.
REPLICATED = "replicate"


def read_sharded(collectives: Collectives) -> Reader:
    """The Reader of one rank of a tensor-parallel group. It raises ValueError for degrees that do not divide."""

    def read(
        path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
    ) -> tuple[PreTrainedModel, list[int]]:
        check_degree(config, collectives.num_ranks)
        model = empty_model(config, dtype)
        styles = plan(model, collectives.num_ranks)
        fill(model, path, dtype, device, shards(model, styles, collectives.rank, collectives.num_ranks))
        connect(model, styles, collectives)
        return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))

    return read


def check_degree(config: PreTrainedConfig, degree: int) -> None:
    """Checks that a model can be split among `degree` ranks.

    Raises ValueError naming the sizes that do not divide, or UnsupportedArchitecture if the model has no plan.
    """
    text = config.get_text_config(decoder=True)
    name = (config.architectures or [config.model_type])[0]
    if not getattr(text, "base_model_tp_plan", None):
        raise UnsupportedArchitecture(
            f"{name} has no tensor-parallel plan in transformers; use parallel=lp, or parallel=single"
        )
    sizes = {
        "attention heads": text.num_attention_heads,
        "key/value heads": getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        "intermediate size": getattr(text, "intermediate_size", None),
    }
    sizes = {what: size for what, size in sizes.items() if isinstance(size, int)}  # some models have one for each layer
    odd = [f"{size} {what}" for what, size in sizes.items() if size % degree]
    if odd:
        fitting = [n for n in range(1, degree) if all(size % n == 0 for size in sizes.values())]
        raise ValueError(
            f"parallel.tp={degree} does not divide {name}'s {' and '.join(odd)}: use a degree that does "
            f"({', '.join(map(str, fitting))}), or parallel=lp"
        )


def plan(model: PreTrainedModel, degree: int) -> dict[str, str]:
    """The style of each module that is split, by the module's name.

    Raises UnsupportedArchitecture for an unknown style, and for a plan that fits none of the model's modules.
    """
    base = model.base_model_prefix
    text: Any = model.config.get_text_config(decoder=True)
    patterns = {f"{base}.{name}": style for name, style in text.base_model_tp_plan.items()}
    patterns |= type(model)._tp_plan or {}
    parts = {**dict(model.named_modules()), **dict(model.named_parameters())}
    embedding, _ = _embeddings(model)
    styles = {}
    for name, part in parts.items():
        style = next((patterns[p] for p in patterns if re.fullmatch(_expression(p), name)), REPLICATED)
        if style.startswith(REPLICATED) or part is embedding:  # the embedding is split with the head, whatever the plan
            continue
        if style not in STYLES or not isinstance(part, nn.Linear):
            raise UnsupportedArchitecture(
                f"{type(model).__name__} splits {name} in the style {style!r}, which tensor parallelism does not know "
                "here; use parallel=lp, or parallel=single"
            )
        styles[name] = style
    if not any(name.startswith(f"{base}.") for name in styles):
        raise UnsupportedArchitecture(
            f"{type(model).__name__} has none of the modules that its tensor-parallel plan in transformers names; use "
            "parallel=lp, or parallel=single"
        )
    return _with_vocabulary(model, styles, degree)


def _expression(pattern: str) -> str:
    """A regular expression for a pattern of the plan, in which * is the index of a layer."""
    return re.escape(pattern).replace(r"\*", r"\d+")


def _with_vocabulary(model: PreTrainedModel, styles: dict[str, str], degree: int) -> dict[str, str]:
    """Adds the embedding if the head is split; removes the head if the vocabulary does not divide."""
    embedding, head = _embeddings(model)
    head_name = name_of(model, head)
    if embedding.num_embeddings % degree or head_name not in styles:
        return {name: style for name, style in styles.items() if name != head_name}
    return {**styles, name_of(model, embedding): COLUMN}


def _embeddings(model: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    return embedding, head


def shards(model: nn.Module, styles: Mapping[str, str], rank: int, degree: int) -> dict[str, Shard]:
    """The shard that a rank holds of each parameter of the split modules, by the parameter's name.

    Raises ValueError for a size that does not divide.
    """
    found = {}
    for name, style in styles.items():
        along_rows = style in (COLUMN, COLUMN_WHOLE_OUTPUT)
        for parameter, tensor in model.get_submodule(name).named_parameters():
            dim = 0 if along_rows else 1
            if tensor.dim() <= dim:
                continue  # the bias of a row-parallel module
            if tensor.shape[dim] % degree:
                raise ValueError(
                    f"parallel.tp={degree} does not divide {name}, which has {tensor.shape[dim]} "
                    f"{'outputs' if along_rows else 'inputs'}: use a degree that does, or parallel=lp"
                )
            found[f"{name}.{parameter}"] = Shard(dim, rank, degree)
    return found


def connect(model: PreTrainedModel, styles: Mapping[str, str], collectives: Collectives) -> None:
    """Adds the collectives to the split modules of a model whose weights have been read."""
    for name, style in styles.items():
        module = model.get_submodule(name)
        if isinstance(module, nn.Embedding):
            _split_vocabulary(model, module, collectives)
        if style == COLUMN_WHOLE_OUTPUT:
            module.register_forward_hook(_gather(collectives))
        if style == ROW_WHOLE_INPUT:
            module.register_forward_pre_hook(_split(collectives))
        if style in (ROW, ROW_WHOLE_INPUT):
            module.register_forward_hook(_reduce(collectives))
            if getattr(module, "bias", None) is not None and collectives.rank != 0:
                module.register_parameter("bias", None)  # rank 0 adds it, once


def _split_vocabulary(model: PreTrainedModel, embedding: nn.Embedding, collectives: Collectives) -> None:
    """Makes tokens of other ranks look up a row of zeros, so that the sum over the ranks is the embedding.

    A tied head still shares the embedding's memory: it is all rows except the row of zeros.
    """
    size, first = embedding.weight.shape[0], embedding.weight.shape[0] * collectives.rank
    head = _embeddings(model)[1]
    is_tied = head.weight is embedding.weight
    zeros = embedding.weight.new_zeros(1, embedding.weight.shape[1])
    embedding.weight = nn.Parameter(torch.cat([embedding.weight, zeros]), requires_grad=False)
    embedding.num_embeddings = size + 1
    embedding.padding_idx = None  # it may be another rank's token
    if is_tied:
        head.weight = nn.Parameter(embedding.weight[:size], requires_grad=False)

    def localise(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mine = args[0] - first
        return (torch.where((mine >= 0) & (mine < size), mine, size), *args[1:])

    embedding.register_forward_pre_hook(localise)
    embedding.register_forward_hook(_reduce(collectives))


def _reduce(collectives: Collectives) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return collectives.all_reduce(output)

    return hook


def _gather(collectives: Collectives) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.cat(collectives.all_gather(output).unbind(), dim=-1)

    return hook


def _split(collectives: Collectives) -> Callable[..., tuple[Tensor, ...]]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0].chunk(collectives.num_ranks, dim=-1)[collectives.rank], *args[1:])

    return hook
