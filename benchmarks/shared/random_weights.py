"""Models with random weights, written to disk or made in memory. Their text means nothing, but their step times do.

The tokenizer is the demo model's; its ids are the first of the vocabulary.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from benchmarks.shared.shapes import describe_shape, model_of_shape, num_parameters
from lp.model.memory import MARGIN, cache_bytes
from lp.model.quantization.experts import compute_quantized, is_transposed
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.model import as_parameter
from lp.model.quantization.packed import PackedWeight, empty_packed, pack_for, stored_scale
from lp.model.quantization.quantize import FORMATS, Weights, bits_of, bytes_of_number, quantize
from lp.model.quantization.weight import QuantizedWeight, WeightFormat

TOKENIZER = Path(__file__).resolve().parents[2] / "demo/python-11m"


def make_model(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """A model that is made on its device and in its format: none of it passes through the host."""
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def quantize_model(model: PreTrainedModel, weights: Weights) -> None:
    """Quantises the weights of a model in place, as model.weights does when a checkpoint is read. Those that have no
    memory get planes that have none.
    """

    def quantized(weight: Tensor, bits: int) -> QuantizedWeight:
        if weight.device.type == "meta":
            num_outputs, num_inputs = weight.shape
            return empty_packed(FORMATS[bits], num_outputs, num_inputs, weight.dtype, weight.device)
        return quantize(weight, bits, weight.dtype, weight.device)

    plain = {name: weight for name, weight in model.named_parameters() if bytes_of_number(model, name, weights) < 2}
    made: dict[int, nn.Parameter] = {}
    for name, weight in plain.items():
        bits, numbers = bits_of(model, name, weights), weight.data
        if weight.dim() == 3:
            of_experts = numbers.mT if is_transposed(model, name) else numbers
            content: QuantizedWeight = QuantizedExperts([quantized(one, bits) for one in of_experts])
        else:
            content = quantized(numbers, bits)
        made[id(weight)] = as_parameter(model, name, pack_for(content, weight.device), weight.device)
        weight.data = weight.new_empty(0)
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and id(weight) in made:
                module._parameters[name] = made[id(weight)]
    compute_quantized(model)


def random_packed(
    format: WeightFormat, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device
) -> PackedWeight:
    """A weight of random numbers on a device, in planes."""
    packed = empty_packed(format, num_outputs, num_inputs, dtype, device)
    for name, plane in packed.planes.all().items():
        if name in ("scales", "minima"):
            stored = stored_scale(format)
            scales = torch.rand(plane.numel() * 4 // stored.itemsize, device=device) * 0.01
            plane.copy_(scales.to(stored).view(plane.dtype).view(plane.shape))
        else:
            plane.random_()
    return packed


def check_room(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, num_tokens: int, num_copies: int = 1
) -> None:
    """Ends the program with the numbers if the weights and the caches do not fit the device.

    num_tokens: tokens of all caches together. num_copies: how often the weights are held.
    """
    weights = num_copies * num_parameters(config) * dtype.itemsize
    cache = cache_bytes(config, dtype, num_tokens)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
    else:
        import psutil

        free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    if weights + cache + MARGIN * total > free:
        copies = f" in {num_copies} copies (compiled code has its own)" if num_copies > 1 else ""
        raise SystemExit(
            f"the model does not fit {device}: weights {weights / 1e9:.1f} GB{copies}, caches of {num_tokens:,} tokens "
            f"{cache / 1e9:.1f} GB, activations and libraries {MARGIN * total / 1e9:.1f} GB, and {free / 1e9:.1f} of "
            f"{total / 1e9:.1f} GB are free; use --dtype bfloat16, a smaller --config, fewer --cached tokens, or "
            "--compile off"
        )


def write_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype, seed: int) -> None:
    """Writes one file for each layer, so that no more than one layer is in memory at a time. Raises OSError."""
    config.dtype = dtype
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    model = model_of_shape(config, dtype)
    model.tie_weights()
    shapes = {name: weight.shape for name, weight in model.named_parameters()}  # tied weights appear once
    generator = torch.Generator().manual_seed(seed)
    groups = group_by_layer(list(shapes))
    index: dict[str, str] = {}
    for number, names in enumerate(tqdm(groups, unit="file", desc="writing"), start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {name: _random(name, shapes[name], dtype, generator) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=1))
    (folder / "README.md").write_text(
        f"{describe_shape(config)}\n\nRandom weights (seed {seed}), for step times only: its text means nothing.\n"
    )


def group_by_layer(names: list[str]) -> list[list[str]]:
    """Groups parameters by the layer that they belong to, and those outside the layers by their module."""
    groups: dict[str, list[str]] = {}
    for name in names:
        before, is_layer, after = name.partition(".layers.")
        groups.setdefault(after.split(".")[0] if is_layer else before.split(".")[0], []).append(name)
    return list(groups.values())


def _random(name: str, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """One random parameter: norms are one, biases are zero, and matrices keep the scale of their inputs."""
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype)
    return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(dtype)
