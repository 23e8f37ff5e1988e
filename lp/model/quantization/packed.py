"""Quantised weights as the kernels of a GPU read them: planes of codes, scales and steps, outputs side by side.

A plane lies block of 64 inputs by block of inputs, so that a program that multiplies some outputs reads one piece of
memory after the other. Codes of 4 bits share a byte with those of the inputs 32 further on; codes of 5 and 6 bits have
their upper bits in further bytes, of 8 and 4 groups of 32 inputs each. What groups share lies in words of 4 bytes, the
least that a GPU copies to its shared memory in the background. This module does not depend on the kernels.

N outputs, K inputs, S inputs that share a scale, G inputs that share a step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import AT_ONCE, GROUP, IndexedWeight, Numbers, QuantizedWeight, WeightFormat, as_float


@dataclass(frozen=True)
class Planes:
    """The parts of a packed weight.

    codes: uint8 [K / 64, N, 32], the lower four bits of two codes, or [K / 32, N, 32], codes of 8 bits. upper: uint8
    [K / 256, N, 32], the fifth bits of eight codes, or [K / 128, N, 32], the fifth and sixth bits of four; the first
    codes' come lowest. scales: int32 [K / S / 2, N], two numbers of 16 bits, or float32 [K / S, N]. minima: like
    scales, and may be the very same. steps: int32 [K / 64, N], four bytes: a block's steps, then its minimum_steps;
    [K / 128, N] if there are no steps.
    """

    codes: Tensor
    upper: Tensor | None
    scales: Tensor
    minima: Tensor | None
    steps: Tensor | None

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


class PackedWeight(IndexedWeight):
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

    def _numbers(self, outputs: slice | Tensor) -> Numbers:
        planes = {name: plane[:, outputs].transpose(0, 1) for name, plane in self.planes.all().items()}
        codes = planes["codes"]
        num_outputs = len(codes)
        if self.format.bits < 8:
            codes = torch.stack([codes & 15, codes >> 4], dim=2)
        codes = codes.reshape(num_outputs, -1, GROUP)[:, : self.num_inputs // GROUP]
        if (upper := planes.get("upper")) is not None:
            num_bits = self.format.bits - 4
            shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=self.device)[:, None]
            bits = (upper[:, :, None] >> shifts) & ((1 << num_bits) - 1)
            codes = codes | bits.reshape(num_outputs, -1, GROUP)[:, : codes.shape[1]] << 4
        shared = {name: self._shared(planes[name]) for name in ("scales", "minima") if name in planes}
        if self.planes.minima is self.planes.scales:
            shared["minima"] = shared["scales"]
        if (words := planes.get("steps")) is not None:
            shared |= self._steps(words)
        return Numbers(codes.reshape(num_outputs, -1), **shared)

    def _shared(self, plane: Tensor) -> Tensor:
        """Scales or minima of a plane [N, rows], in the format's dtype."""
        stored, given = stored_scale(self.format), plane.clone(memory_format=torch.contiguous_format)
        if stored != torch.float32:
            given = given.view(stored)[:, : self.num_inputs // self.span].float()
        if self.format.scale == torch.uint8:
            return (given.view(torch.int32) >> 23).to(torch.uint8)
        return given.to(self.format.scale)

    def _steps(self, words: Tensor) -> dict[str, Tensor]:
        """The steps and minimum_steps in words [N, rows]."""
        num_groups, num_steps = self.num_inputs // GROUP, steps_of_block(self.format)
        num_bytes = num_steps + 2 * self.format.has_minimum_steps
        blocks = words.clone(memory_format=torch.contiguous_format).view(torch.uint8).view(len(words), -1, num_bytes)
        found: dict[str, Tensor] = {}
        if self.format.step is not None:
            steps = blocks[:, :, :num_steps].reshape(len(words), -1)[:, : num_groups * num_steps // 2]
            found["steps"] = steps.contiguous().view(self.format.step)
        if self.format.has_minimum_steps:
            found["minimum_steps"] = blocks[:, :, num_steps:].reshape(len(words), -1)[:, :num_groups]
        return found


def stored_scale(format: WeightFormat) -> torch.dtype:
    """The dtype of packed scales and minima."""
    return torch.bfloat16 if format.scale == torch.uint8 else format.scale


def steps_of_block(format: WeightFormat) -> int:
    """Steps of a block of 64 inputs."""
    return 0 if format.step is None else 2 * GROUP // format.group


def empty_packed(
    format: WeightFormat, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device,
    has_own_minima: bool = True,
) -> PackedWeight:  # fmt: skip
    """A weight whose numbers are still to be written. has_own_minima: whether minima are other numbers than scales."""

    def plane(num_rows: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(num_rows, num_outputs, dtype=dtype, device=device)

    def blocks(number: int) -> Tensor:
        return torch.empty(number, num_outputs, GROUP, dtype=torch.uint8, device=device)

    num_groups, num_blocks = num_inputs // GROUP, -(-num_inputs // (2 * GROUP))
    num_scales, has_halves = num_inputs // (format.span or num_inputs), stored_scale(format) != torch.float32
    num_words, scale = (-(-num_scales // 2), torch.int32) if has_halves else (num_scales, torch.float32)
    num_bytes = num_blocks * (steps_of_block(format) + 2 * format.has_minimum_steps)
    scales = plane(num_words, scale)
    planes = Planes(
        codes=blocks(num_groups if format.bits == 8 else num_blocks),
        upper=blocks(-(-num_groups * (format.bits - 4) // 8)) if format.bits in (5, 6) else None,
        scales=scales,
        minima=(plane(num_words, scale) if has_own_minima else scales) if format.has_minima else None,
        steps=plane(-(-num_bytes // 4), torch.int32) if num_bytes else None,
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
        num_bits = packed.format.bits - 4
        num_codes = 8 // num_bits
        groups = _in_groups(codes >> 4, len(planes.upper) * num_codes).view(len(codes), -1, num_codes, GROUP)
        shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=device)[:, None]
        planes.upper.copy_((groups << shifts).sum(dim=2, dtype=torch.uint8).transpose(0, 1))
    if packed.format.bits == 8:
        planes.codes.copy_(codes.view(len(codes), -1, GROUP).transpose(0, 1))
    else:
        pairs = _in_groups(codes & 15, len(planes.codes) * 2).view(len(codes), -1, 2, GROUP)
        planes.codes.copy_((pairs[:, :, 0] | pairs[:, :, 1] << 4).transpose(0, 1))
    planes.scales.copy_(_shared_plane(numbers.scales, packed.format))
    if planes.minima is not None and planes.minima is not planes.scales and numbers.minima is not None:
        planes.minima.copy_(_shared_plane(numbers.minima, packed.format))
    if planes.steps is not None:
        parts = [
            pad(own.to(device).view(torch.uint8), (0, -own.shape[1] % of_block)).view(len(own), -1, of_block)
            for own, of_block in ((numbers.steps, steps_of_block(packed.format)), (numbers.minimum_steps, 2))
            if own is not None
        ]
        planes.steps.copy_(_words(torch.cat(parts, dim=2).flatten(1)))


def _shared_plane(scales: Tensor, format: WeightFormat) -> Tensor:
    """The plane of scales or minima [N, K / S]."""
    stored = as_float(scales).to(stored_scale(format))
    return stored.t() if stored.dtype == torch.float32 else _words(stored)


def _words(numbers: Tensor) -> Tensor:
    """int32 [words, N]: numbers [N, ...] of 8 or 16 bits, with zeros at the end."""
    return pad(numbers, (0, -numbers.shape[1] % (4 // numbers.element_size()))).contiguous().view(torch.int32).t()


def _in_groups(codes: Tensor, num_groups: int) -> Tensor:
    """codes [N, K] with zeros at the end, as inputs of so many groups."""
    return pad(codes, (0, num_groups * GROUP - codes.shape[1]))


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
