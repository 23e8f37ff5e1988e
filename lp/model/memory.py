"""Checks that a model fits a GPU before anything is loaded, so that a refusal comes at once and with the numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

# There must be room for a cache of this many tokens, or of the whole context if that is shorter.
LIKELY_TOKENS = 4096
# The share of the device's memory that is set aside for graphs, activations and libraries.
MARGIN = 0.06


class DoesNotFit(ValueError):
    """The model is too large for its device. The message gives the numbers and says what to lower."""


def check_fits(
    path: str,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
    kv_bytes: float | None = None,
) -> None:
    """Raises DoesNotFit for a checkpoint folder whose weights, arena and graphs need more than a GPU has free.

    kv_bytes: the size of the arena of keys and values; None is as much as one sequence is likely to need.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    num_tokens = min(max_length, LIKELY_TOKENS)
    weights = num_parameters(Path(path)) * dtype.itemsize
    arena, what = kv_bytes, "model.kv_memory"
    if arena is None:
        arena, what = cache_bytes(config, dtype, num_tokens), f"keys and values of {num_tokens} tokens"
    rest = MARGIN * total
    if weights + arena + rest > free:
        lower = "" if kv_bytes is None else "a lower model.kv_memory, "
        raise DoesNotFit(
            f"{path!r} does not fit {device}: weights {weights / 1e9:.1f} GB, {what} {arena / 1e9:.1f} GB, graphs and "
            f"activations {rest / 1e9:.1f} GB, and {free / 1e9:.1f} of {total / 1e9:.1f} GB are free; use {lower}"
            "model.dtype=bfloat16, a lower model.max_length, parallel=tp over more GPUs, or free the GPU"
        )


def num_weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, with shared memory counted once. An empty model counts as if it were filled."""
    storages = {p.untyped_storage().data_ptr() or id(p): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


def num_parameters(folder: Path) -> int:
    """The number of parameters in a folder's safetensors files, by their headers; 0 if there is no such folder."""
    return sum(_num_in_file(file) for file in folder.glob("*.safetensors")) if folder.is_dir() else 0


def _num_in_file(file: Path) -> int:
    # A safetensors file begins with the length of its header (8 bytes, little-endian) and the header itself in JSON.
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def cache_bytes(config: PreTrainedConfig, dtype: torch.dtype, num_tokens: int) -> int:
    """Bytes that the keys and values of `num_tokens` tokens take in all layers."""
    text: Any = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * head_dim * num_tokens * dtype.itemsize
