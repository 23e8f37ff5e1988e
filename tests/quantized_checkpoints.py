"""Tiny checkpoints with quantised weights, as the libraries of each method write them, and the same ones unpacked.

What is written here is written from the definitions, one code after the other, and shares nothing with what reads it.

N outputs, K inputs, S inputs that share a scale, G = K / S
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models import save_checkpoint

GROUP = 32
# Of blocks of FP8: outputs and inputs.
BLOCK = (32, 64)
UNEVEN_BLOCK = (48, 96)
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
# What AWQ has at each place of a word.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

# The tensors of a module, by the last parts of their names, and its numbers [N, K] in float32.
Made = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """A way of quantising. settings: quantization_config. make: of a weight [N, K]. also: of the weight of the head."""

    settings: Mapping[str, Any]
    make: Callable[[Tensor], Made]
    also: Mapping[str, Callable[[Tensor], Made]] = field(default_factory=dict)


def write_quantized(
    folder: Path, kind: Kind, architecture: str = "llama", sizes: Mapping[str, Any] = SIZES, **changes: Any
) -> tuple[Path, Path]:
    """Writes a tiny model whose linear layers and experts are quantised, and the same one unpacked. Returns both
    folders.

    changes: go into the model's configuration.
    """
    plain = save_checkpoint(folder / "plain", architecture, **{**sizes, **changes})
    quantized = save_checkpoint(folder / "quantized", architecture, **{**sizes, **changes})
    weights = load_file(plain / "model.safetensors")
    stored = dict(weights)
    for name in sorted(weights):
        module = name.removesuffix(".weight")
        is_inner = ("_proj" in name or ".experts." in name) and not name.endswith("bias")
        make = kind.make if is_inner else kind.also.get(module)
        if make is not None and weights[name].dim() == 3:
            parts, weights[name] = _experts(make, stored.pop(name))
            stored |= {f"{name}_{part.removeprefix('weight_')}": tensor for part, tensor in parts.items()}
        elif make is not None:
            parts, weights[name] = make(stored.pop(name))
            stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    save_file(
        {name: one.contiguous() for name, one in stored.items()}, quantized / "model.safetensors", {"format": "pt"}
    )
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = dict(kind.settings)
    (quantized / "config.json").write_text(json.dumps(config))
    return quantized, plain


def _experts(make: Callable[[Tensor], Made], weights: Tensor) -> Made:
    """Of all experts in one tensor [experts, K, N]: parts [experts, ...]."""
    made = [make(one.t().contiguous()) for one in weights]
    parts = {part: torch.stack([own[part] for own, _ in made]) for part in made[0][0]}
    return parts, torch.stack([numbers.t() for _, numbers in made])


def integers(
    weight: Tensor, bits: int, span: int, has_zeros: bool, scale: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [N, K], scales [N, G], zeros [N, G], and the numbers that these stand for."""
    groups = weight.float().view(len(weight), -1, span)
    largest = (1 << bits) - 1
    if has_zeros:
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scales = ((high - low) / largest).to(scale)
        zeros = (-low / scales.float()).round().clamp(1, largest).int()
    else:
        scales = (groups.abs().amax(dim=2) * 2 / largest).to(scale)
        zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.int32)
    codes = ((groups / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, largest).int()
    numbers = (codes - zeros[..., None]).float() * scales.float()[..., None]
    return codes.view(weight.shape), scales, zeros, numbers.view(weight.shape)


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32 [rows, columns * bits / 32]: codes packed along rows. order: which code is at each place of a word."""
    together = 32 // bits
    given = codes.numpy().astype(np.uint32)
    found = np.zeros((given.shape[0], -(-given.shape[1] // together)), np.uint32)
    for column in range(given.shape[1]):
        word, place = divmod(column, together)
        place = order.index(place) if order else place
        found[:, word] |= given[:, column] << np.uint32(bits * place)
    return torch.from_numpy(found.view(np.int32))


def gptq(bits: int, has_zeros: bool, offset: int, span: int = GROUP) -> Callable[[Tensor], Made]:
    def make(weight: Tensor) -> Made:
        codes, scales, zeros, numbers = integers(weight, bits, span, has_zeros)
        parts = {
            "qweight": words(codes, bits).t(),
            "qzeros": words((zeros - offset).t(), bits),
            "scales": scales.t(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // span,
        }
        return parts, numbers

    return make


def awq(weight: Tensor) -> Made:
    codes, scales, zeros, numbers = integers(weight, 4, GROUP, has_zeros=True)
    parts = {
        "qweight": words(codes.t(), 4, AWQ_ORDER),
        "qzeros": words(zeros.t(), 4, AWQ_ORDER),
        "scales": scales.t(),
    }
    return parts, numbers


def packed(bits: int, has_zeros: bool, span: int | None = GROUP, scale: torch.dtype = torch.float16):
    def make(weight: Tensor) -> Made:
        codes, scales, zeros, numbers = integers(weight, bits, span or weight.shape[1], has_zeros, scale)
        parts = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if has_zeros:
            parts["weight_zero_point"] = words(zeros.t(), bits).t()
        return parts, numbers

    return make


def int8(has_zeros: bool) -> Callable[[Tensor], Made]:
    """int8 numbers with a scale in bfloat16 for each output."""

    def make(weight: Tensor) -> Made:
        codes, scales, zeros, numbers = integers(weight, 8, weight.shape[1], has_zeros, torch.bfloat16)
        parts = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
        if has_zeros:
            parts["weight_zero_point"] = (zeros - 128).to(torch.int8)
        return parts, numbers

    return make


def fp8(part: str, block: tuple[int | None, int | None]) -> Callable[[Tensor], Made]:
    """Numbers of 8 bits with a scale for each block. part: the last part of the scales' name. block: its outputs and
    inputs; None means all. A scale for all has no dimension.
    """

    def make(weight: Tensor) -> Made:
        rows, columns = (of_one or whole for of_one, whole in zip(block, weight.shape, strict=True))
        largest = [[one.abs().max() for one in strip.split(columns, 1)] for strip in weight.split(rows, 0)]
        scales = torch.tensor(largest) / 448
        each = scales.repeat_interleave(rows, 0)[: len(weight)].repeat_interleave(columns, 1)[:, : weight.shape[1]]
        codes = (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": codes, part: scales.squeeze() if block == (None, None) else scales}, codes.float() * each

    return make


def mxfp4(parts: tuple[str, str], has_blocks: bool) -> Callable[[Tensor], Made]:
    """parts: the last parts of the names of codes and of exponents."""

    def make(weight: Tensor) -> Made:
        groups = weight.view(len(weight), -1, 32)
        exponents = (groups.abs().amax(dim=2) / 6).log2().ceil()
        scaled = groups / exponents.exp2()[..., None]
        nearest = (scaled.abs()[..., None] - E2M1).abs().argmin(dim=-1)
        codes = nearest + 8 * (scaled < 0)
        numbers = torch.where(codes > 7, -1.0, 1.0) * E2M1[codes % 8] * exponents.exp2()[..., None]
        stored = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        stored = stored if has_blocks else stored.reshape(len(weight), -1)
        return {parts[0]: stored, parts[1]: (exponents + 127).to(torch.uint8)}, numbers.reshape(weight.shape)

    return make


def compressed(format: str, weights: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _ints(bits: int, symmetric: bool = True, strategy: str = "group") -> dict[str, Any]:
    size = {"group_size": GROUP} if strategy == "group" else {}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, **size}


_GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
_FLOATS: dict[str, Any] = {"num_bits": 8, "type": "float"}
_PER_TOKEN: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}

KINDS: dict[str, Kind] = {
    "gptq": Kind(_GPTQ, gptq(4, has_zeros=False, offset=1)),
    "gptq-zeros": Kind({**_GPTQ, "sym": False}, gptq(4, has_zeros=True, offset=1)),
    "gptq-8": Kind({**_GPTQ, "bits": 8}, gptq(8, has_zeros=True, offset=1)),
    "gptq-whole": Kind({**_GPTQ, "group_size": -1, "desc_act": True}, lambda one: gptq(4, True, 1, one.shape[1])(one)),
    "gptq_v2": Kind({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq(4, has_zeros=True, offset=0)),
    "awq": Kind({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, awq),
    "packed-4": Kind(compressed("pack-quantized", _ints(4)), packed(4, False, scale=torch.bfloat16)),
    "packed-4-zeros": Kind(compressed("pack-quantized", _ints(4, symmetric=False)), packed(4, has_zeros=True)),
    "packed-8": Kind(compressed("pack-quantized", _ints(8)), packed(8, has_zeros=False)),
    "packed-whole": Kind(compressed("pack-quantized", _ints(4, strategy="channel")), packed(4, False, span=None)),
    "int8": Kind(compressed("int-quantized", _ints(8, strategy="channel")), int8(has_zeros=False)),
    "int8-zeros": Kind(compressed("int-quantized", _ints(8, False, "channel")), int8(has_zeros=True)),
    "float": Kind(
        compressed("float-quantized", {**_FLOATS, "strategy": "channel"}, _PER_TOKEN),
        fp8("weight_scale", (1, None)),
    ),
    "float-whole": Kind(
        compressed("naive-quantized", {**_FLOATS, "strategy": "tensor"}),
        fp8("weight_scale", (None, None)),
    ),
    "float-block": Kind(
        compressed("float-quantized", {**_FLOATS, "strategy": "block", "block_structure": BLOCK}),
        fp8("weight_scale", BLOCK),
    ),
    "fp8": Kind({**_FP8, "weight_block_size": BLOCK}, fp8("weight_scale_inv", BLOCK)),
    "fp8-uneven": Kind({**_FP8, "weight_block_size": UNEVEN_BLOCK}, fp8("weight_scale_inv", UNEVEN_BLOCK)),
    "fp8-whole": Kind(_FP8, fp8("weight_scale_inv", (None, None))),
    "mxfp4": Kind({"quant_method": "mxfp4"}, mxfp4(("weight_blocks", "weight_scales"), has_blocks=True)),
    "packed-mxfp4": Kind(
        compressed("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
        mxfp4(("weight_packed", "weight_scale"), has_blocks=False),
    ),
    "mixed": Kind(
        compressed("mixed-precision", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": BLOCK})
        | {
            "config_groups": {
                "group_0": {"targets": ["re:.*proj"], "weights": _ints(4), "format": "pack-quantized"},
                "group_1": {
                    "targets": ["lm_head"],
                    "weights": _ints(8, strategy="channel"),
                    "format": "int-quantized",
                },
            }
        },
        packed(4, has_zeros=False),
        {"lm_head": int8(has_zeros=False)},
    ),
}
