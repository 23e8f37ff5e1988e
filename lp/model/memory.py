"""Checks that a model fits its device before it is loaded, and finds how much memory keys and values may then take
(`model.kv_memory`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig

from lp.kv_cache.arena import Arena
from lp.kv_cache.cache import PAGE, KVMemory, LayerShape, pages_of
from lp.kv_cache.contiguous import ContiguousMemory
from lp.kv_cache.recurrent import MOST_STATES
from lp.model.layers import cached_layers, head_counts, head_dims
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.recurrent.kinds import attention_layers
from lp.model.weight_files import FLOATING

# A cache of this many tokens must fit, or of the whole context if that is shorter.
LIKELY_TOKENS = 4096
# The share of the device's memory that is set aside for graphs, activations and libraries.
MARGIN = 0.06
# Sequences for whose states of recurrent layers memory is set aside.
STATE_SEQUENCES = 16
# On a GPU, "auto" takes no more than so many sequences of the whole context can fill.
MOST_SEQUENCES = 256


class DoesNotFit(ValueError):
    """The model is too large for its device. The message gives the numbers and says what to lower."""


def check_fits(
    path: str,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
    kv_bytes: float | None = None,
    num_parts: int = 1,
    weight_bytes: float | None = None,
) -> None:
    """Raises DoesNotFit for a checkpoint folder whose weights, arena and graphs need more than a GPU has free.

    kv_bytes: the size of the arena of keys and values; None is as much as one sequence is likely to need. num_parts:
    ranks among which the model is split. weight_bytes: of quantised weights and all others; None means that all weights
    of the folder have the dtype.
    """
    if device.type != "cuda":
        return
    free, total = _free_memory(device)
    num_tokens = min(max_length, LIKELY_TOKENS)
    weights = (num_parameters(Path(path)) * dtype.itemsize if weight_bytes is None else weight_bytes) / num_parts
    arena, what = kv_bytes, "model.kv_memory"
    if arena is None:
        arena, what = cache_bytes(config, dtype, num_tokens) / num_parts, f"keys and values of {num_tokens} tokens"
    rest = MARGIN * total
    if weights + arena + rest > free:
        lower = "" if kv_bytes is None else "a lower model.kv_memory, "
        quantised = "model.weights=int4, " if weight_bytes is None and num_parts == 1 else ""
        part = "" if num_parts == 1 else f"1/{num_parts} of the "
        raise DoesNotFit(
            f"{path!r} does not fit {device}: {part}weights {weights / 1e9:.1f} GB, {what} {arena / 1e9:.1f} GB, "
            f"graphs and activations {rest / 1e9:.1f} GB, and {free / 1e9:.1f} of {total / 1e9:.1f} GB are free; use "
            f"{lower}model.dtype=bfloat16, {quantised}a lower model.max_length, parallel=tp over more GPUs, or free "
            "the GPU"
        )


def num_weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, with shared memory counted once. An empty model counts as if it were filled."""
    sizes: dict[int, int] = {}
    for weight in model.parameters():
        if isinstance(weight, QuantizedParameter):
            sizes[id(weight.quantized)] = weight.quantized.num_bytes
        else:
            storage = weight.untyped_storage()
            sizes[storage.data_ptr() or id(weight)] = storage.nbytes()
    return sum(sizes.values())


def num_parameters(folder: Path) -> int:
    """The number of parameters in a folder's safetensors files, by their headers; 0 if there is no such folder."""
    return sum(math.prod(entry["shape"]) for entry in _entries(folder))


def stored_bytes(folder: Path, dtype: torch.dtype) -> int:
    """The bytes of all tensors in a folder's safetensors files, where those of floating point are read in a dtype and
    others, which are quantised, stay as they are.
    """
    return sum(
        math.prod(entry["shape"]) * dtype.itemsize
        if entry["dtype"] in FLOATING
        else entry["data_offsets"][1] - entry["data_offsets"][0]
        for entry in _entries(folder)
    )


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    """What the headers of a folder's safetensors files say of each tensor."""
    for file in folder.glob("*.safetensors") if folder.is_dir() else ():
        # A file begins with the length of its header (8 bytes, little-endian) and the header itself in JSON.
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        yield from (entry for name, entry in header.items() if name != "__metadata__")


def cache_bytes(config: PreTrainedConfig, dtype: torch.dtype, num_tokens: int) -> int:
    """Bytes that the keys and values of `num_tokens` tokens take in all layers."""
    layers = attention_layers(config, cached_layers(config))
    per_token = sum(head_counts(config, layer)[1] * sum(head_dims(config, layer)) for layer in layers)
    return per_token * num_tokens * dtype.itemsize


log = logging.getLogger("lookahead")

AUTO = "auto"
# With "auto" on a CPU: the share of the available memory that keys and values may take.
CPU_SHARE = 0.5


def parse_bound(setting: str) -> float | None:
    """The bound in bytes; None for "auto". Raises ValueError for anything else than "auto" and a number of GB."""
    if setting == AUTO:
        return None
    try:
        gigabytes = float(setting)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise ValueError(f"model.kv_memory={setting!r} must be auto, or a number of GB above 0")
    return gigabytes * 1e9


class Bound(NamedTuple):
    """How much memory keys and values may take.

    setting: as the user gave it. size: in bytes. reason: how it was found, in words that follow the setting.
    """

    setting: str
    size: float
    reason: str

    def share_of_states(self, state_bytes: int) -> float:
        """What is set aside for the states of recurrent layers: those of some sequences, but not more than half.

        state_bytes: of one state in all layers. Logs the share.
        """
        share = min(self.size / 2, STATE_SEQUENCES * MOST_STATES * state_bytes)
        log.info(
            "recurrent layers: %.3g GB of model.kv_memory=%s are for their states, of %.3g MB each",
            share / 1e9, self.setting, state_bytes / 1e6,
        )  # fmt: skip
        return share

    def shared_by(self, numbers_per_token: Sequence[int]) -> list[Bound]:
        """A share for each of some models, so that all get the same number of pages.

        numbers_per_token: of each model's keys and values. Models without any get equal shares.
        """
        if len(numbers_per_token) == 1:
            return [self]
        if not any(numbers_per_token):
            numbers_per_token = [1] * len(numbers_per_token)
        reason, whole = f"{self.reason}, shared with a second model", sum(numbers_per_token)
        return [Bound(self.setting, self.size * number / whole, reason) for number in numbers_per_token]


def find_bound(setting: str, device: torch.device, num_sharing: int = 1) -> Bound:
    """What a setting means once all weights are loaded. "auto" is on a GPU what is free but for MARGIN of the whole,
    of which `make_memory` takes at most what MOST_SEQUENCES can fill, and on a CPU CPU_SHARE of the available memory.

    num_sharing: the number of ranks in this device's memory. Raises ValueError as `parse_bound` does.
    """
    given = parse_bound(setting)
    size, reason = (given, "") if given is not None else _auto(device, num_sharing)
    return Bound(setting, size, reason)


def make_memory(
    bound: Bound,
    shapes: Mapping[int, LayerShape],
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
) -> KVMemory:
    """The memory that a bound allows, which is logged with numbers. On a GPU it is allocated at once.

    shapes: of the layers that are held here; none in the first layers of a model, if these are recurrent. num_layers:
    of the model. max_length: the most tokens of a sequence.
    Raises ValueError if one sequence does not fit.
    """
    if not shapes:
        return ContiguousMemory(0)
    page_bytes = PAGE * dtype.itemsize * sum(shape.numbers for shape in shapes.values())
    num_pages = count_pages(bound, page_bytes, device, max_length)
    if device.type == "cuda":
        return Arena(shapes, num_layers, num_pages, dtype, device)
    return ContiguousMemory(len(shapes), num_pages)


def count_pages(bound: Bound, page_bytes: float, device: torch.device, max_length: int) -> int:
    """The number of pages of `page_bytes` that a bound allows, which is logged. max_length: see `make_memory`.

    Raises ValueError if one sequence does not fit.
    """
    reserved = 1 if device.type == "cuda" else 0  # the page of padding rows
    num_pages = int(bound.size // page_bytes) - reserved
    reason, useful = bound.reason, MOST_SEQUENCES * pages_of(max_length + 1)
    if bound.setting == AUTO and device.type == "cuda" and num_pages > useful:
        num_pages, reason = useful, f" (as much as {MOST_SEQUENCES} sequences of the whole context can fill)"
    needed = pages_of(min(max_length, LIKELY_TOKENS)) + 1
    if num_pages < needed:
        raise DoesNotFit(
            f"model.kv_memory={bound.setting}{bound.reason} is {bound.size / 1e9:.3g} GB, and the keys and values of "
            f"one sequence of {min(max_length, LIKELY_TOKENS):,} tokens and the rows of a step need "
            f"{(needed + reserved) * page_bytes / 1e9:.3g} GB; use a higher model.kv_memory, a lower model.max_length, "
            "or model.dtype=bfloat16"
        )
    log.info("%s", _describe(bound.setting + reason, num_pages, page_bytes, max_length))
    return num_pages


def _auto(device: torch.device, num_sharing: int) -> tuple[float, str]:
    """The bytes of "auto", and in words how they are found."""
    if device.type == "cuda":
        free, total = _free_memory(device)
        if num_sharing == 1:
            return max(0.0, free - MARGIN * total), f" (what is free on {device}, but for {MARGIN:.0%} of it)"
        # The others may still load, or have taken their share: each takes what its weights leave of an equal one.
        share = (1 - MARGIN) * total / num_sharing - torch.cuda.memory_reserved(device)
        return max(0.0, min(free, share)), f" (an equal share of {device} for each of {num_sharing} ranks)"
    size = CPU_SHARE * available_memory() / num_sharing
    shared = f", shared by {num_sharing} ranks" if num_sharing > 1 else ""
    return size, f" ({CPU_SHARE:.0%} of the memory that is available{shared})"


def _free_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that are free, and all that it has. What torch has freed and kept for itself counts as free."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)


def free_memory(device: torch.device) -> int:
    """Bytes of a device's memory that are free."""
    return _free_memory(device)[0] if device.type == "cuda" else available_memory()


def available_memory() -> int:
    """Bytes of the host's memory that are available."""
    import psutil  # not needed on a GPU

    return int(psutil.virtual_memory().available)


def _describe(setting: str, num_pages: int, page_bytes: float, max_length: int) -> str:
    """How many tokens and sequences fit."""
    num_tokens = num_pages * PAGE
    whole = num_pages // pages_of(max_length + 1)
    sequences = f"{whole:,} sequence(s) of the whole context of {max_length:,} tokens"
    if not whole:
        sequences = f"less than the whole context of {max_length:,} tokens"
    size = num_pages * page_bytes / 1e9
    return f"keys and values: {size:.3g} GB with model.kv_memory={setting}, for {num_tokens:,} tokens: {sequences}"
