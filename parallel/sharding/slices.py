"""Which outputs or inputs of each split module of a model every rank holds.

Attention is split between heads, everything else between columns. All ranks wait for one another twice in a layer, so
the slowest rank of each part of a layer counts. Attention, the MLP and the vocabulary are therefore each dealt out as
evenly as they can be, and none makes up for another. What does not divide leaves some ranks a little more: attention
heads leave it to the first ranks, everything else to the last ones. So memory is as balanced as it can be without
making a step slower. Knows nothing of how ranks talk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lp.model.exactness import UnsupportedArchitecture
from lp.model.layers import head_counts, head_dims
from lp.model.quantization.experts import expert_weights
from lp.model.weight_files import Shard

COLUMN, ROW = "colwise", "rowwise"
COLUMN_WHOLE_OUTPUT, ROW_WHOLE_INPUT = "colwise_gather_output", "rowwise_split_input"
# Queries, keys and values in one weight, each of which is split.
PACKED_COLUMN = "packed_colwise"
# All experts of a layer: each rank holds a part of each of them.
EXPERTS = "moe_tp_experts"
STYLES = {COLUMN, ROW, COLUMN_WHOLE_OUTPUT, ROW_WHOLE_INPUT, PACKED_COLUMN}
# By the name of each split module: the range of outputs (of a column-parallel module) or inputs of every rank.
Slices = Mapping[str, list[range]]


def slices(model: PreTrainedModel, styles: Mapping[str, str], degree: int, multiple: int = 1) -> Slices:
    """What each of `degree` ranks holds of the modules with these styles.

    multiple: a number of columns at whose multiples weights are cut where that leaves the ranks nearly equal parts.
    Raises ValueError for a module with less columns than ranks, and UnsupportedArchitecture if it is not known how the
    columns of an attention module belong to heads.
    """
    return {name: _slices_of(model, name, style, degree, multiple) for name, style in styles.items()}


def shards(model: PreTrainedModel, styles: Mapping[str, str], cut: Slices, rank: int) -> dict[str, Shard]:
    """The shard that a rank holds of each parameter of the split modules, by the parameter's name."""
    found = {}
    for name, style in styles.items():
        module, held = model.get_submodule(name), cut[name][rank]
        for parameter, tensor in module.named_parameters():
            if (shard := _shard(module, parameter, tensor, style, held)) is not None:
                found[f"{name}.{parameter}"] = shard
    for name in _split_attention(styles):
        attention = model.get_submodule(name)
        for parameter, tensor in attention.named_parameters(recurse=False):
            if has_number_per_head(model.config, tensor):
                degree = len(next(iter(cut.values())))
                found[f"{name}.{parameter}"] = Shard(0, (own_heads(model.config, styles, rank, degree).query,))
    return found


def has_number_per_head(config: PreTrainedConfig, tensor: Tensor) -> bool:
    """Whether a parameter of an attention module has a number for each query head, as sinks are."""
    return tuple(tensor.shape) == head_counts(config, 0)[:1]


def _shard(module: nn.Module, parameter: str, tensor: nn.Parameter, style: str, held: range) -> Shard | None:
    """The shard of a parameter of a split module; None for one that every rank holds whole."""
    if style == EXPERTS:
        return _shard_of_experts(module, parameter, tensor, held)
    if not _is_column(style):
        is_bias = tensor.dim() == 1
        return None if is_bias else Shard(0 if isinstance(module, Conv1D) else 1, (held,))
    dim = tensor.dim() - 1 if isinstance(module, Conv1D) else 0
    return Shard(dim, _in_each(held, tensor.shape[dim], 3 if style == PACKED_COLUMN else 1))


def _shard_of_experts(module: Any, parameter: str, tensor: nn.Parameter, held: range) -> Shard | None:
    """The same for experts. held: inner numbers. Every rank holds the biases of what is summed over the ranks."""
    if parameter == "down_proj_bias":
        return None
    if parameter == "down_proj":
        return Shard(1 if module.is_transposed else 2, (held,))
    dim = 2 if module.is_transposed and tensor.dim() == 3 else 1
    if not module.has_gate:
        return Shard(dim, (held,))
    if module.is_concatenated:
        return Shard(dim, _in_each(held, tensor.shape[dim], 2))
    return Shard(dim, (range(2 * held.start, 2 * held.stop),))


def _in_each(held: range, size: int, count: int) -> tuple[range, ...]:
    """The same range of each of `count` equal parts of `size` columns."""
    part = size // count
    return tuple(range(number * part + held.start, number * part + held.stop) for number in range(count))


def is_known_mixture(module: Any) -> bool:
    """Whether a module has a layer's experts as weights that can be split, as transformers' interface for them does."""
    if not (weights := expert_weights(module)):
        return False
    biases = {f"{name}_bias" for name in weights} if module.has_bias else set[str]()
    return {name for name, _ in module.named_parameters()} == weights | biases


def own_heads(config: PreTrainedConfig, styles: Mapping[str, str], rank: int, degree: int, layer: int = 0) -> HeadShare:
    """The heads of a layer that a rank computes and caches: all of them if the plan gives every rank all queries and
    keys.
    """
    if not _split_attention(styles):
        rank, degree = 0, 1
    return deal_heads(*head_counts(config, layer), degree)[rank]


def count_own_heads(model: PreTrainedModel, styles: Mapping[str, str], rank: int, degree: int) -> None:
    """Tells the attention modules how many heads this rank holds, in those attributes that transformers' models use.

    Modules whose projections give every rank the whole output keep the numbers of the whole model. Raises
    UnsupportedArchitecture for a weight that spans all heads, such as that of a norm over the whole width of queries.
    """
    for name in _split_attention(styles):
        attention = model.get_submodule(name)
        own = own_heads(model.config, styles, rank, degree, _layer_of(attention))
        _check_spans(model, name, attention, styles)
        for attribute, number in _numbers_of(own, _head_dim(model, attention)).items():
            if hasattr(attention, attribute):
                setattr(attention, attribute, number)


def _split_attention(styles: Mapping[str, str]) -> list[str]:
    """The names of the modules of attention that compute a part of the heads on each rank."""
    owners = {name.rpartition(".")[0] for name, style in styles.items() if style in (COLUMN, PACKED_COLUMN)}
    return sorted(filter(_is_attention, owners))


def _numbers_of(own: HeadShare, head_dim: int) -> dict[str, int]:
    """The names that transformers' attention modules have for their numbers of heads, with this rank's numbers."""
    query, key_value = len(own.query), len(own.key_value)
    return {
        "num_heads": query,
        "num_attention_heads": query,
        "num_key_value_heads": key_value,
        "num_kv_heads": key_value,
        "num_key_value_groups": own.group,
        "split_size": query * head_dim,
    }


def _slices_of(model: PreTrainedModel, name: str, style: str, degree: int, multiple: int) -> list[range]:
    module: Any = model.get_submodule(name)
    if isinstance(module, nn.Embedding):
        size, what = module.num_embeddings, "tokens"
    elif style == EXPERTS:
        size, what = module.down_proj.shape[1 if module.is_transposed else 2], "inner numbers"
    elif isinstance(module, Conv1D):
        size, what = (module.nf, "outputs") if _is_column(style) else (module.nx, "inputs")
    else:
        size, what = (module.out_features, "outputs") if _is_column(style) else (module.in_features, "inputs")
    if style == PACKED_COLUMN:
        size //= 3
    if style in (COLUMN, ROW, PACKED_COLUMN) and _is_attention(name.rpartition(".")[0]):
        return _slices_by_head(model, name, size, degree)
    if size < degree:
        raise ValueError(
            f"parallel.tp={degree} is more than the {size} {what} of {name}: use parallel.tp={size} or less, or "
            "parallel=lp"
        )
    return deal(size, degree, multiple)


def _slices_by_head(model: PreTrainedModel, name: str, size: int, degree: int) -> list[range]:
    """Each rank's outputs or inputs of a module of attention: those of its query heads, or of its key/value heads."""
    attention = model.get_submodule(name.rpartition(".")[0])
    num_query, num_key_value = head_counts(model.config, _layer_of(attention))
    held = deal_heads(num_query, num_key_value, degree)
    head_dim = _head_dim(model, attention)
    if size == num_query * head_dim or (num_query == num_key_value and size % num_query == 0):
        return _scaled([share.query for share in held], size // num_query)
    if size == num_key_value * head_dim:
        return _scaled([share.key_value for share in held], head_dim)
    if num_query % degree == num_key_value % degree == size % degree == 0:
        return deal(size, degree)
    raise UnsupportedArchitecture(
        f"{type(model).__name__} has {num_query} query heads and {num_key_value} key/value heads of {head_dim}, which "
        f"parallel.tp={degree} does not divide, and it is not known how the {size} columns of {name} belong to them; "
        "use parallel=lp, or a degree that divides both"
    )


def _scaled(heads: list[range], width: int) -> list[range]:
    """The columns of ranges of heads, each of which has `width` columns."""
    return [range(held.start * width, held.stop * width) for held in heads]


def _head_dim(model: PreTrainedModel, attention: nn.Module) -> int:
    """The width of a head in an attention module."""
    own = getattr(attention, "head_dim", None) or getattr(attention, "head_size", None)
    return own or head_dims(model.config, _layer_of(attention))[0]


def _layer_of(attention: Any) -> int:
    """The index of the layer of an attention module."""
    return getattr(attention, "layer_idx", None) or 0


def _check_spans(model: PreTrainedModel, name: str, attention: nn.Module, styles: Mapping[str, str]) -> None:
    """Raises UnsupportedArchitecture for a weight of a split attention module that is as wide as all heads together."""
    numbers, head_dim = head_counts(model.config, _layer_of(attention)), _head_dim(model, attention)
    wide = {shape for number in numbers for shape in ((number, head_dim), (number * head_dim,))} - {(head_dim,)}
    for weight_name, weight in _unsplit(name, attention, styles):
        if tuple(weight.shape) in wide:
            raise UnsupportedArchitecture(
                f"{type(model).__name__} has a weight of all heads, {weight_name}, that its tensor-parallel plan "
                "does not split; use parallel=lp, or parallel=single"
            )


def _unsplit(name: str, attention: nn.Module, styles: Mapping[str, str]) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of an attention module that belong to none of the split modules, with their full names."""
    for parameter, weight in attention.named_parameters(prefix=name):
        if parameter.rpartition(".")[0] not in styles:
            yield parameter, weight


def _is_column(style: str) -> bool:
    return style in (COLUMN, COLUMN_WHOLE_OUTPUT, PACKED_COLUMN)


def _is_attention(name: str) -> bool:
    """Whether a module is attention, or a part of it, by its dotted name."""
    return any("attn" in part or "attention" in part for part in name.split("."))


# Columns come in multiples of one of these, the largest that keeps the largest share near the even one.
_UNITS = (64, 32, 16, 8, 4, 2, 1)
# By how much of the even share the largest share may be above it for the sake of a larger unit.
_TOLERANCE = 1 / 16


@dataclass(frozen=True)
class HeadShare:
    """The attention heads of one rank: consecutive query heads, and the key/value heads that they attend with.

    There are equally many query heads for each key/value head. Several ranks may hold the same key/value head.
    """

    query: range
    key_value: range

    @property
    def group(self) -> int:
        """The number of query heads for each key/value head."""
        return len(self.query) // len(self.key_value)


def deal(size: int, count: int, multiple: int = 1) -> list[range]:
    """Cuts `size` columns into a range for each of `count` ranks, none of them empty; `count` must not be above `size`.

    They are equal if the columns divide into multiples of `multiple`. Otherwise they are multiples of 64, or of the
    largest smaller power of two that keeps the largest range within 1/16 of the even share. The last range may be cut
    short; the larger ones come last.
    """
    assert count <= size, f"{size} columns cannot be dealt out to {count} ranks"
    if size % (count * multiple) == 0:
        return _ranges([size // count] * count)
    for unit in _UNITS:
        shares = [unit * number for number in reversed(_shares(-(-size // unit), count))]
        shares[-1] -= sum(shares) - size
        if unit == 1 or (min(shares) > 0 and max(shares) <= (1 + _TOLERANCE) * size / count):
            break
    return _ranges(shares)


def deal_heads(num_query: int, num_key_value: int, count: int) -> list[HeadShare]:
    """Deals out attention heads, at least one query head to each of `count` ranks.

    Query heads come in groups that share a key/value head. Up to as many ranks as there are groups get whole groups,
    their numbers differing by one at most. More ranks than that are dealt out to the groups in the same way: the ranks
    of a group all hold its key/value head and share its query heads. `count` must not be above `num_query`, which must
    be a multiple of `num_key_value`.
    """
    assert count <= num_query and num_query % num_key_value == 0, (num_query, num_key_value, count)
    group = num_query // num_key_value
    if count <= num_key_value:
        return [
            HeadShare(range(held.start * group, held.stop * group), held)
            for held in _ranges(_shares(num_key_value, count))
        ]
    return [
        HeadShare(range(head * group + part.start, head * group + part.stop), range(head, head + 1))
        for head, num_ranks in enumerate(_shares(count, num_key_value))
        for part in _ranges(_shares(group, num_ranks))
    ]


def _shares(total: int, count: int) -> list[int]:
    """`count` numbers that add up to `total` and differ by one at most; the larger ones come first."""
    size, more = divmod(total, count)
    return [size + (index < more) for index in range(count)]


def _ranges(sizes: list[int]) -> list[range]:
    """Consecutive ranges of these sizes."""
    return [range(begin, end) for begin, end in pairwise([0, *accumulate(sizes)])]
