"""Quantised weights as the native code reads them: the C++ struct of each format, and packed codes, scales and steps.

K inputs, N outputs, P panels of W outputs, S inputs that share a scale, G inputs that share a step
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import AT_ONCE, GROUP, Numbers, QuantizedWeight, WeightFormat

# Outputs that are packed together, as in kernels/numbers.h.
PANEL = 16
# In kernels/quantized.h.
SCALES = {torch.float16: "HALVES", torch.float32: "FLOATS", torch.uint8: "EXPONENTS"}
STEPS = {None: "NO_STEPS", torch.uint8: "UNSIGNED_STEPS", torch.int8: "SIGNED_STEPS"}
# Entries of a table in which values are found by the lower bits of a word.
TABLE = 32


@dataclass(frozen=True)
class Norms:
    """Stands for the argument that bounds the products of a weight whose codes are split: WeightNorms in screened.h."""

    weight: QuantizedWeight


def kernel_format(format: WeightFormat) -> WeightFormat:
    """What of a format the kernels depend on."""
    return replace(format, name="", span=None)


def struct(name: str, format: WeightFormat) -> list[str]:
    """The lines of a format's struct."""
    low, high = (8, 0) if format.bits == 8 else (4, format.bits - 4)
    values = format.codebook or ()
    words = values or [value - format.zero for value in range(1 << format.bits)]
    return [
        "namespace {  // of this library alone: others of the process have formats of the same names",
        f"struct {name} {{",
        f"    static constexpr int LOW = {low}, HIGH = {high}, STEP_GROUP = {format.group};",
        f"    static constexpr bool IS_SPLIT = {_bool(format.is_split)};",
        f"    static constexpr int NUM_VALUES = {len(values)};",
        f"    static constexpr int SCALES = {SCALES[format.scale]}, STEPS = {STEPS[format.step]};",
        f"    static constexpr float ZERO = {float(format.zero)}f;",
        f"    static constexpr bool HAS_MINIMA = {_bool(format.has_minima)};",
        f"    static constexpr bool HAS_MINIMUM_STEPS = {_bool(format.has_minimum_steps)};",
        f"    alignas(64) static constexpr float CODEBOOK[] = {{{', '.join(map(_float, values or (0.0,)))}}};",
        f"    alignas(64) static constexpr uint16_t WORDS[] = {{{_table(words) if low < 8 else 0}}};",
        "};",
        "}  // namespace",
    ]


def packed_bytes(weight: QuantizedWeight) -> int:
    """Bytes of a packed weight; of experts, those of one behind those of the other."""
    if isinstance(weight, QuantizedExperts):
        return sum(map(packed_bytes, weight.experts))
    return sum(prod(shape) for shape in _shapes(weight))


def pack_quantized(weight: QuantizedWeight, library: ctypes.CDLL, out: Tensor) -> None:
    """Writes a weight's codes, scales and steps. library: of its format. out: uint8 [packed_bytes]."""
    if isinstance(weight, QuantizedExperts):
        for one, own in zip(weight.experts, out.chunk(len(weight.experts)), strict=True):
            pack_quantized(one, library, own)
        return
    shapes = _shapes(weight)
    _, scales, steps = (part.view(shape) for part, shape in zip(out.split([*map(prod, shapes)]), shapes, strict=True))
    pack, number = library.pack, ctypes.c_long
    pack.argtypes, pack.restype = [ctypes.c_void_p, number, number, number, number, ctypes.c_void_p], None
    num_panels = len(scales)
    at_once = max(1, AT_ONCE // (weight.num_inputs * PANEL))
    for first in range(0, num_panels, at_once):
        last = min(first + at_once, num_panels)
        numbers = _whole_panels(weight, first, last)
        unpacked = numbers.codes.contiguous()
        pack(unpacked.data_ptr(), first, last, weight.num_inputs, weight.num_outputs, out.data_ptr())
        _write(scales[first:last], [numbers.scales, numbers.minima])
        _write(steps[first:last], [*_by_part(numbers.steps, steps.shape[1]), numbers.minimum_steps])


def find_norms(weight: QuantizedWeight, library: ctypes.CDLL, packed: Tensor) -> Tensor:
    """Computes what Norms stands for. library: of the weight's format. packed: its codes, scales and steps."""
    num_panels, num_fours = -(-weight.num_outputs // PANEL), -(-weight.num_inputs // (4 * GROUP))
    out = torch.empty(num_panels * PANEL * (num_fours + 2), dtype=torch.int32)
    norms, number = library.norms, ctypes.c_long
    norms.argtypes, norms.restype = [ctypes.c_void_p, number, number, number, ctypes.c_void_p], None
    norms(packed.data_ptr(), *weight.shape, weight.span // GROUP, out.data_ptr())
    return out


def _shapes(weight: QuantizedWeight) -> list[tuple[int, ...]]:
    """Gives the shapes of codes [P, bytes], scales [P, K / S, bytes] and steps [P, K / 32, bytes], all uint8.

    Codes that are split lie in two halves instead, which have as many bytes.
    """
    format = weight.format
    num_panels, num_groups = -(-weight.num_outputs // PANEL), weight.num_inputs // GROUP
    num_steps = (0 if format.step is None else GROUP // format.group) + format.has_minimum_steps
    return [
        (num_panels, num_groups * format.bits * PANEL * 4),
        (num_panels, weight.num_inputs // weight.span, PANEL * format.scale.itemsize * (1 + format.has_minima)),
        (num_panels, num_groups, PANEL * num_steps),
    ]


def _whole_panels(weight: QuantizedWeight, first: int, last: int) -> Numbers:
    """The numbers of panels [first, last). What is beyond the last output is 0."""
    end = min(last * PANEL, weight.num_outputs)
    numbers = weight.numbers(first * PANEL, end)
    beyond = last * PANEL - end

    def whole(part: Tensor | None) -> Tensor | None:
        return part if part is None or not beyond else torch.cat([part, part.new_zeros(beyond, part.shape[1])])

    parts = [whole(getattr(numbers, name)) for name in ("codes", "scales", "steps", "minima", "minimum_steps")]
    assert parts[0] is not None and parts[1] is not None
    return Numbers(parts[0], parts[1], *parts[2:])


def _by_part(steps: Tensor | None, num_groups: int) -> list[Tensor | None]:
    """Steps [N, K / G] as [N, K / 32] for each part of a group of 32."""
    return [] if steps is None else [*steps.view(len(steps), num_groups, -1).unbind(dim=2)]


def _write(out: Tensor, parts: list[Tensor | None]) -> None:
    """Writes arrays [N, n] side by side into uint8 [P, n, bytes], outputs of a panel side by side."""
    arrays = [part.view(len(out), PANEL, -1).permute(0, 2, 1) for part in parts if part is not None]
    if arrays:
        out.copy_(torch.cat([one.contiguous().view(torch.uint8) for one in arrays], dim=2))


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    return '__builtin_nanf("")' if value != value else f"{value!r}f"


def _table(values: Sequence[float]) -> str:
    """bfloat16 values, whose number is a power of two, as often as they fit a table; at least once."""
    words = torch.tensor([*values]).bfloat16().view(torch.int16).int() & 0xFFFF
    return ", ".join(map(str, words.repeat(max(1, TABLE // len(values))).tolist()))
