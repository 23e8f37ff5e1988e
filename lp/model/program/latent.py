"""Latent attention with a compressed cache (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

Where a layer's keys and values are products of the same few numbers with a weight, these latent numbers are cached in
their place, once for all heads. The products move to the other side of attention: queries are multiplied by the weight
of the keys before it, and what the heads read by the weight of the values behind it. The numbers of a key that are the
same in all heads, as those with its position are, lie behind the latent ones.

H heads, L latent numbers, N numbers of a key that are products, S that are the same in all heads, V numbers of a value
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from lp.model.program.steps import (
    Attention,
    Constant,
    ExpertProduct,
    Keep,
    Map,
    Operand,
    Product,
    Program,
    Step,
    Value,
    reads,
    written,
)
from lp.model.quantization.weight import QuantizedWeight


@dataclass(frozen=True)
class _Latent:
    """How a layer's keys and values are made of latent numbers.

    product: of the latent numbers with the weight. own, shared: the copies that put a key together, of N products and
    of S shared numbers. key, value: what is cached so far.
    """

    product: Product
    own: Map
    shared: Map
    key: Keep
    value: Keep

    @property
    def num_latent(self) -> int:
        return self.product.weight.shape[0]

    @property
    def num_cached(self) -> int:
        """The numbers of one token: L + S."""
        return self.num_latent + self.shared.sizes[1]

    @property
    def is_smaller(self) -> bool:
        return self.num_cached < self.key.num_heads * (self.key.head_dim + self.value.head_dim)

    def place(self, copy: Map) -> int:
        """Where what a copy writes begins in a key."""
        return copy.out.start - self.key.source.start

    def keep(self) -> list[Step]:
        """Caches the latent numbers, and behind them those that all heads share."""
        latent, shared = Value(self.num_cached), self.shared.inputs[0]
        return [
            Map(Operand(latent, 0, (1,)), (self.num_latent,), "{0}", (self.product.x,)),
            Map(Operand(latent, self.num_latent, (1,)), self.shared.sizes[1:], "{0}",
                (Operand(shared.source, shared.start, (1,)),)),
            Keep(Operand(latent, 0, ()), self.key.layer, True, 1, self.num_cached),
        ]  # fmt: skip

    def attend(self, attention: Attention, heads: Operand) -> list[Step]:
        """Computes what the attention over keys and values does. heads: the numbers of all heads."""
        num_heads, query, num_latent, width = attention.num_heads, attention.query, self.num_latent, self.num_cached
        products, answers = Value(num_heads * num_latent), Value(num_heads * num_latent)
        queries = Value(num_heads * width)
        own, shared = (
            Operand(query.source, query.start + self.place(copy), (attention.head_stride, 1))
            for copy in (self.own, self.shared)
        )
        of_keys = self._weight(self.own.inputs[0], self.own.sizes[1])
        of_values = self._weight(self.value.source, self.value.head_dim).transpose(1, 2)
        every_latent = Operand(products, 0, (num_latent, 1))
        return [
            ExpertProduct(products, own, heads, of_keys, None, num_heads),
            Map(Operand(queries, 0, (width, 1)), (num_heads, num_latent), "{0}", (every_latent,)),
            Map(Operand(queries, num_latent, (width, 1)), self.shared.sizes, "{0}", (shared,)),
            Attention(
                answers, Operand(queries, 0, (width,)), attention.layer, attention.how, 1, num_heads, width, num_latent,
                attention.sinks, values_in_keys=True,
            ),
            ExpertProduct(attention.out, Operand(answers, 0, (num_latent, 1)), heads, of_values, None, num_heads),
        ]  # fmt: skip

    def _weight(self, outputs: Operand, size: int) -> Tensor:
        """[H, size, L] the weight's numbers for some of its outputs: `size` of them for each head."""
        weight, stride, num_heads = self.product.weight, outputs.strides[0], self.key.num_heads
        if isinstance(weight, QuantizedWeight):
            numbers = outputs.start + stride * torch.arange(num_heads)[:, None] + torch.arange(size)
            return weight.rows(numbers).to(weight.dtype)
        of_latent, of_output = weight.stride()
        offset = weight.storage_offset() + outputs.start * of_output
        strides = stride * of_output, of_output, of_latent
        return weight.detach().as_strided((num_heads, size, self.num_latent), strides, offset)


def cache_latent_numbers(program: Program) -> None:
    """Has each layer whose keys and values are made of latent numbers cache these, if they are fewer."""
    readers, writers = defaultdict[int, list[Step]](list), defaultdict[int, list[Step]](list)
    for step in program.steps:
        for operand in reads(step):
            readers[id(operand.source)].append(step)
        for value in written(step):
            writers[id(value)].append(step)
    kept = {(step.layer, step.is_key): step for step in program.steps if isinstance(step, Keep)}
    replaced: dict[int, list[Step]] = {}  # by ids of steps
    heads: dict[int, Operand] = {}
    for layer in program.cached_layers:
        latent = _find(kept[layer, True], kept[layer, False], readers, writers)
        attentions = [step for step in program.steps if isinstance(step, Attention) and step.layer == layer]
        if latent is None or not latent.is_smaller or len(attentions) > 1 or attentions[0].num_groups > 1:
            continue
        (attention,) = attentions
        numbers = heads.setdefault(attention.num_heads, Operand(Value(attention.num_heads, is_integer=True), 0, (1,)))
        replaced |= {id(step): [] for step in (latent.product, latent.own, latent.shared, latent.value)}
        replaced |= {id(latent.key): latent.keep(), id(attention): latent.attend(attention, numbers)}
    counts: list[Step] = [_count(size, numbers) for size, numbers in heads.items()]
    program.steps = counts + [new for step in program.steps for new in replaced.get(id(step), [step])]


def _find(key: Keep, value: Keep, readers: dict[int, list[Step]], writers: dict[int, list[Step]]) -> _Latent | None:
    """How keys and values are made of latent numbers; None if they are not, or if anything else reads them."""
    made, copies = writers[id(value.source.source)], writers[id(key.source.source)]
    match made:
        case [Product(bias=None) as product]:
            pass
        case _:
            return None
    own = [copy for copy in copies if _is_copy(copy, key) and reads(copy)[0].source is product.out]
    shared = [copy for copy in copies if _is_copy(copy, key) and reads(copy)[0].strides[0] == 0]
    match own, shared, copies:
        case [Map() as first], [Map() as second], [_, _]:
            latent = _Latent(product, first, second, key, value)
        case _:
            return None
    has_other_readers = len(readers[id(product.out)]) > 2 or len(readers[id(key.source.source)]) > 1
    is_whole = first.sizes[1] + second.sizes[1] == key.head_dim
    return latent if is_whole and not has_other_readers else None


def _is_copy(step: Step, key: Keep) -> bool:
    """Whether a step copies numbers that lie side by side to a part of each head's key."""
    match step:
        case Map(formula="{0}", sizes=(heads, _), out=out, inputs=(Operand(source=Value(), strides=(_, 1)),)):
            return heads == key.num_heads and out.strides == (*key.source.strides, 1)
    return False


def _count(size: int, numbers: Operand) -> Map:
    """Writes 0, 1, ... `size` - 1."""
    return Map(numbers, (size,), "{0}", (Operand(Constant(torch.arange(size, dtype=torch.float32)), 0, (1,)),))
