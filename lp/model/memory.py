"""Does a model fit a GPU? Asked before anything is loaded, so that the answer comes at once and with the numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

LIKELY_TOKENS = 4096
"""Tokens of a cache that there must be room for, if the context is longer and nobody said how much of it is used."""
MARGIN = 0.06
"""Share of the device's memory for graphs, activations and the libraries."""


class DoesNotFit(ValueError):
    """A model that is too large for its device; the message has the numbers and what to lower."""


def check_fits(path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, max_length: int) -> None:
    """Raises DoesNotFit for a checkpoint folder whose weights and cache need more than a GPU has free."""
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    num_tokens = min(max_length, LIKELY_TOKENS)
    weights = num_parameters(Path(path)) * dtype.itemsize
    cache = cache_bytes(config, dtype, num_tokens)
    rest = MARGIN * total
    if weights + cache + rest > free:
        raise DoesNotFit(
            f"{path!r} does not fit {device}: weights {weights / 1e9:.1f} GB, a cache of {num_tokens} tokens "
            f"{cache / 1e9:.1f} GB, graphs and activations {rest / 1e9:.1f} GB, and {free / 1e9:.1f} of "
            f"{total / 1e9:.1f} GB are free; use model.dtype=bfloat16, a lower model.max_length, parallel=tp over more "
            "GPUs, or free the GPU"
        )


def num_parameters(folder: Path) -> int:
    """Numbers in the safetensors files of a folder, by their headers; 0 if it is no folder (a hub id)."""
    return sum(_num_in_file(file) for file in folder.glob("*.safetensors")) if folder.is_dir() else 0


def _num_in_file(file: Path) -> int:
    """A safetensors file begins with the length of its header (8 bytes, little-endian) and the header in JSON."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def cache_bytes(config: PreTrainedConfig, dtype: torch.dtype, num_tokens: int) -> int:
    """Bytes of keys and values of so many tokens in all layers."""
    text: Any = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * head_dim * num_tokens * dtype.itemsize
