"""Quantised weights as the kernels of a GPU read them: planes of codes, scales and steps, outputs side by side.

A plane lies block of inputs by block of inputs, so that a program that multiplies some outputs reads one piece of
memory after the other. Codes of 4 bits share a byte with those of the inputs 32 further on; codes of 5 and 6 bits have
their upper bits in words for 32 inputs each. Knows nothing of the kernels.

N outputs, K inputs, S inputs that share a scale, G inputs that share a step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import AT_ONCE, GROUP, Numbers, QuantizedWeight, WeightFormat, dequantize

# The planes of what groups of inputs share, which are named as in Numbers.
SHARED = ("scales", "steps", "minima", "minimum_steps")


@dataclass(frozen=True)
class Planes:
    """The parts of a packed weight.

    codes: uint8 [K / 64, N, 32], the lower four bits of two codes, or [K / 32, N, 32], codes of 8 bits. upper: int32
    [K / 32 * (bits - 4), N], one bit of the codes of 32 inputs. scales, minima: [K / S, N]; minima may be the scales
    themselves. steps: [K / G, N]. minimum_steps: uint8 [K / 32, N].
    """

    codes: Tensor
    upper: Tensor | None
    scales: Tensor
    steps: Tensor | None
    minima: Tensor | None
    minimum_steps: Tensor | None

    def all(self) -> dict[str, Tensor]:
        """Those that there are, each once."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.minima is self.scales:
            del found["minima"]
        return {name: plane for name, plane in found.items() if plane is not None}

    def like(self, planes: dict[str, Tensor]) -> Planes:
        """Other planes in the places of these. planes: named as by `all`."""
        made = replace(self, **planes)
        return replace(made, minima=made.scales) if self.minima is self.scales else made


class PackedWeight(QuantizedWeight):
    """A weight in planes on a device, or some outputs of one, which shares its memory.

    owner: the weight whose outputs these are, from `first` on; None if it is no part of another one.
    """

    def __init__(
        self, format: WeightFormat, num_inputs: int, dtype: torch.dtype, planes: Planes,
        owner: PackedWeight | None = None, first: int = 0,
    ):  # fmt: skip
        super().__init__(format, planes.codes.shape[1], num_inputs, dtype)
        self.planes, self.owner, self.first = planes, owner, first

    @property
    def device(self) -> torch.device:
        return self.planes.codes.device

    @property
    def num_bytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes.all().values())

    def free(self) -> None:
        self.planes = self.planes.like({name: plane.new_empty(0) for name, plane in self.planes.all().items()})
        self.owner = None

    def part(self, first: int, last: int) -> PackedWeight:
        """The outputs [first, last)."""
        planes = {name: plane[:, first:last] for name, plane in self.planes.all().items()}
        owner = self.owner or self
        return PackedWeight(
            self.format, self.num_inputs, self.dtype, self.planes.like(planes), owner, self.first + first
        )

    def numbers(self, first: int, last: int) -> Numbers:
        return self._numbers(slice(first, last))

    def rows(self, outputs: Tensor) -> Tensor:
        numbers = self._numbers(outputs.reshape(-1).to(self.device))
        return dequantize(self.format, numbers).view(*outputs.shape, self.num_inputs)

    def _numbers(self, outputs: slice | Tensor) -> Numbers:
        planes = {name: plane[:, outputs].transpose(0, 1) for name, plane in self.planes.all().items()}
        codes = planes["codes"]
        num_outputs = len(codes)
        if self.format.bits < 8:
            codes = torch.stack([codes & 15, codes >> 4], dim=2)
        codes = codes.reshape(num_outputs, -1, GROUP)[:, : self.num_inputs // GROUP]
        if (upper := planes.get("upper")) is not None:
            words = upper.reshape(*codes.shape[:2], -1).contiguous()
            places = torch.arange(8, dtype=torch.uint8, device=self.device)
            for bit, own in enumerate(words.unbind(dim=2)):
                ones = own.contiguous().view(torch.uint8).view(*codes.shape[:2], 4, 1) >> places & 1
                codes = codes | ones.view(codes.shape) << (4 + bit)
        rest = {name: planes[name].contiguous() for name in SHARED if name in planes}
        if self.planes.minima is self.planes.scales:
            rest["minima"] = rest["scales"]
        return Numbers(codes.reshape(num_outputs, -1), **rest)


def empty_packed(
    format: WeightFormat, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device,
    has_own_minima: bool = True,
) -> PackedWeight:  # fmt: skip
    """A weight whose numbers are still to be written. has_own_minima: whether minima are other numbers than scales."""

    def plane(num_rows: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(num_rows, num_outputs, dtype=dtype, device=device)

    num_groups, num_scales = num_inputs // GROUP, num_inputs // (format.span or num_inputs)
    num_blocks = num_groups if format.bits == 8 else -(-num_groups // 2)
    scales = plane(num_scales, format.scale)
    planes = Planes(
        codes=torch.empty(num_blocks, num_outputs, GROUP, dtype=torch.uint8, device=device),
        upper=plane(num_groups * (format.bits - 4), torch.int32) if format.bits in (5, 6) else None,
        scales=scales,
        steps=None if format.step is None else plane(num_inputs // format.group, format.step),
        minima=(plane(num_scales, format.scale) if has_own_minima else scales) if format.has_minima else None,
        minimum_steps=plane(num_groups, torch.uint8) if format.has_minimum_steps else None,
    )
    return PackedWeight(format, num_inputs, dtype, planes)


def pack_for(weight: QuantizedWeight, device: torch.device) -> QuantizedWeight:
    """A weight, or those of all experts, as a device reads it: packed on a GPU, and as it is on a CPU."""
    if device.type != "cuda":
        return weight
    return pack_experts(weight, device) if isinstance(weight, QuantizedExperts) else pack(weight, device)


def pack(weight: QuantizedWeight, device: torch.device) -> PackedWeight:
    """Packs a weight on a device, some outputs at a time."""
    first = weight.numbers(0, 1)
    packed = empty_packed(
        weight.format, weight.num_outputs, weight.num_inputs, weight.dtype, device, first.minima is not first.scales
    )
    at_once = max(1, AT_ONCE // weight.num_inputs)
    for begin in range(0, weight.num_outputs, at_once):
        end = min(begin + at_once, weight.num_outputs)
        _write(packed.part(begin, end), weight.numbers(begin, end))
    return packed


def _write(packed: PackedWeight, numbers: Numbers) -> None:
    planes, device = packed.planes, packed.device
    codes = numbers.codes.to(device).contiguous()
    if planes.upper is not None:
        groups = codes.view(len(codes), -1, 1, 4, 8)
        places = torch.arange(4, 4 + planes.upper.shape[0] // groups.shape[1], device=device, dtype=torch.uint8)
        ones = groups >> places[:, None, None] & 1
        shifted = ones << torch.arange(8, device=device, dtype=torch.uint8)
        words = shifted.sum(dim=-1, dtype=torch.uint8).contiguous().view(torch.int32)
        planes.upper.copy_(words.view(len(codes), -1).t())
    if packed.format.bits == 8:
        planes.codes.copy_(codes.view(len(codes), -1, GROUP).transpose(0, 1))
    else:
        codes = torch.nn.functional.pad(codes & 15, (0, len(planes.codes) * 2 * GROUP - codes.shape[1]))
        pairs = codes.view(len(codes), -1, 2, GROUP)
        planes.codes.copy_((pairs[:, :, 0] | pairs[:, :, 1] << 4).transpose(0, 1))
    for name in SHARED:
        plane, own = getattr(planes, name), getattr(numbers, name)
        if plane is not None and not (name == "minima" and plane is planes.scales):
            plane.copy_(own.to(device).t())


def pack_experts(weight: QuantizedExperts, device: torch.device) -> QuantizedExperts:
    """Packs the weights of all experts into one, whose parts they are."""
    packed, size = pack(weight, device), weight.experts[0].num_outputs
    return QuantizedExperts([packed.part(first, first + size) for first in range(0, packed.num_outputs, size)])


def packed_experts(weight: QuantizedExperts) -> PackedWeight:
    """The packed weight whose parts are the weights of all experts."""
    parts = [one for one in weight.experts if isinstance(one, PackedWeight)]
    assert len(parts) == len(weight.experts), "weights on a GPU are packed for it"
    return join(parts)


def join(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Weights of one format and as many inputs, one below the other: the weight of which they are parts already, or a
    new one.
    """
    first, end = weights[0], weights[0].first
    for one in weights:
        if one.owner is None or one.owner is not first.owner or one.first != end:
            break
        end += one.num_outputs
    else:
        assert first.owner is not None
        is_all = first.first == 0 and end == first.owner.num_outputs
        return first.owner if is_all else first.owner.part(first.first, end)
    parts = [one.planes.all() for one in weights]
    planes = {name: torch.cat([own[name] for own in parts], dim=1) for name in parts[0]}
    return PackedWeight(first.format, first.num_inputs, first.dtype, first.planes.like(planes))
