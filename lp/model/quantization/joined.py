"""Quantised weights that lie one below the other: those of all experts of a layer, and the parts of one expert's.

N outputs, K inputs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from lp.model.quantization.weight import Numbers, QuantizedWeight


class JoinedWeight(QuantizedWeight):
    """Weights of one format and as many inputs, the parts, one below the other. Their numbers stay where they are."""

    def __init__(self, parts: Sequence[QuantizedWeight]):
        """Raises ValueError for weights of several formats."""
        first = parts[0]
        if names := sorted({one.format.name for one in parts if one.format != first.format}):
            raise ValueError(f"it is quantised to {first.format.name}, and a part of it to {', '.join(names)}")
        super().__init__(first.format, sum(one.num_outputs for one in parts), first.num_inputs, first.dtype)
        self.parts = parts
        self._bounds = [range(*pair) for pair in pairwise([0, *accumulate(one.num_outputs for one in parts)])]

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.parts)

    def free(self) -> None:
        for one in self.parts:
            one.free()

    def numbers(self, first: int, last: int) -> Numbers:
        found = []
        for part, bounds in zip(self.parts, self._bounds, strict=True):
            begin, end = max(first, bounds.start), min(last, bounds.stop)
            if begin < end:
                found.append(part.numbers(begin - bounds.start, end - bounds.start))
        if len(found) == 1:
            return found[0]
        names = [one.name for one in fields(Numbers) if getattr(found[0], one.name) is not None]
        return Numbers(**{name: torch.cat([getattr(one, name) for one in found]) for name in names})

    def rows(self, outputs: Tensor) -> Tensor:
        rows = outputs.new_empty((*outputs.shape, self.num_inputs), dtype=torch.float32)
        for part, bounds in zip(self.parts, self._bounds, strict=True):
            is_own = (outputs >= bounds.start) & (outputs < bounds.stop)
            rows[is_own] = part.rows(outputs[is_own] - bounds.start)
        return rows

    def dequantized(self) -> Iterator[Tensor]:
        for one in self.parts:
            yield from one.dequantized()


class InterleavedWeight(JoinedWeight):
    """Weights of one shape and format whose outputs take turns."""

    def numbers(self, first: int, last: int) -> Numbers:
        count = len(self.parts)
        begin, end = first // count, -(-last // count)
        found = [one.numbers(begin, end) for one in self.parts]
        own = slice(first - begin * count, last - begin * count)
        names = [one.name for one in fields(Numbers) if getattr(found[0], one.name) is not None]
        return Numbers(
            **{name: torch.stack([getattr(one, name) for one in found], dim=1).flatten(0, 1)[own] for name in names}
        )

    def rows(self, outputs: Tensor) -> Tensor:
        rows = outputs.new_empty((*outputs.shape, self.num_inputs), dtype=torch.float32)
        for number, part in enumerate(self.parts):
            is_own = outputs % len(self.parts) == number
            rows[is_own] = part.rows(outputs[is_own] // len(self.parts))
        return rows

    def dequantized(self) -> Iterator[Tensor]:
        return QuantizedWeight.dequantized(self)


class QuantizedExperts(JoinedWeight):
    """The weights of all experts of a layer, which have one shape."""

    @property
    def experts(self) -> Sequence[QuantizedWeight]:
        """The weight [N, K] of each expert."""
        return self.parts
