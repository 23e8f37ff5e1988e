"""Parts of quantised weights, for ranks that hold some outputs or some inputs of a weight; they stay packed.

N outputs, K inputs, S inputs that share a scale
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from lp.model.quantization.weight import GROUP, Numbers, QuantizedWeight
from lp.model.weight_files import Shard


class UnevenCut(ValueError):
    """A weight is cut where packed numbers cannot be."""


class WeightPart(QuantizedWeight):
    """Some outputs and inputs of another weight, whose numbers stay where that one has them."""

    def __init__(self, whole: QuantizedWeight, outputs: Sequence[range], inputs: range):
        """outputs: one range behind the other. Raises UnevenCut unless inputs begin and end at multiples of 32."""
        check_inputs(inputs)
        span = whole.span
        if inputs.start // span == (inputs.stop - 1) // span:
            span = len(inputs)  # all of them share a scale
        else:
            span = math.gcd(span, inputs.start, len(inputs))
        format = whole.format if len(inputs) == whole.num_inputs else replace(whole.format, span=span)
        super().__init__(format, sum(map(len, outputs)), len(inputs), whole.dtype)
        self._whole: QuantizedWeight | None = whole
        self._outputs, self._inputs = outputs, inputs

    @property
    def num_bytes(self) -> int:
        """Its share of the bytes of the whole weight."""
        if self._whole is None:
            return 0
        count = self._whole.num_outputs * self._whole.num_inputs
        return self._whole.num_bytes * self.num_outputs * self.num_inputs // count

    def free(self) -> None:
        self._whole = None

    def numbers(self, first: int, last: int) -> Numbers:
        whole = self._stored
        found = [whole.numbers(one.start, one.stop) for one in _ranges(self._outputs, first, last)]
        size = {"codes": 1, "steps": self.format.group, "minimum_steps": GROUP}
        parts = []
        for name in (one.name for one in fields(Numbers)):
            pieces = [getattr(one, name) for one in found]
            joined = pieces[0] if len(pieces) == 1 or pieces[0] is None else torch.cat(pieces)
            parts.append(None if joined is None else self._of_inputs(joined, size.get(name, whole.span)))
        return Numbers(*parts)

    def rows(self, outputs: Tensor) -> Tensor:
        places = torch.cat([torch.arange(one.start, one.stop) for one in self._outputs])
        return self._stored.rows(places[outputs])[..., self._inputs.start : self._inputs.stop]

    @property
    def _stored(self) -> QuantizedWeight:
        assert self._whole is not None, "the weight has been freed"
        return self._whole

    def _of_inputs(self, numbers: Tensor, size: int) -> Tensor:
        """[n, K / size] of the own inputs, from those of all inputs. size: inputs that share a number."""
        begin, end = self._inputs.start, self._inputs.stop
        if begin % size == end % size == 0:
            return numbers[:, begin // size : end // size].contiguous()
        return numbers[:, torch.arange(begin, end, self.span) // size]


def part_of(whole: QuantizedWeight, shard: Shard | None) -> QuantizedWeight:
    """A shard of a weight [N, K]. Raises UnevenCut."""
    if shard is None:
        return whole
    if shard.dim == 0:
        return WeightPart(whole, shard.ranges, range(whole.num_inputs))
    (inputs,) = shard.ranges
    return WeightPart(whole, [range(whole.num_outputs)], inputs)


def check_inputs(inputs: range) -> None:
    """Raises UnevenCut unless inputs begin and end at multiples of 32."""
    if inputs.start % GROUP or inputs.stop % GROUP:
        raise UnevenCut(f"inputs from {inputs.start} up to {inputs.stop}, which are no multiples of {GROUP}")


def unpack(weight: QuantizedWeight, shard: Shard | None, device: torch.device) -> Tensor:
    """[n, k] in the weight's dtype: the numbers of a weight [N, K], or those of a shard."""
    columns = slice(None)
    if shard is not None and shard.dim == 0:
        weight = part_of(weight, shard)
    elif shard is not None:
        (inputs,) = shard.ranges
        columns = slice(inputs.start, inputs.stop)
    width = len(range(weight.num_inputs)[columns])
    whole = torch.empty(weight.num_outputs, width, dtype=weight.dtype, device=device)
    first = 0
    for some in weight.dequantized():
        whole[first : first + len(some)] = some[:, columns]
        first += len(some)
    return whole


def _ranges(outputs: Sequence[range], first: int, last: int) -> Iterator[range]:
    """What ranges that lie one behind the other have of [first, last), in each of them."""
    for one in outputs:
        if len(found := one[max(first, 0) : max(last, 0)]):
            yield found
        first, last = first - len(one), last - len(one)
