"""How much memory keys and values may take (`model.kv_memory`), and how many tokens fit into it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import psutil
import torch

from lp.model.kv.arena import Arena
from lp.model.kv.contiguous import ContiguousMemory
from lp.model.kv.memory import KVMemory
from lp.model.kv_cache import PAGE, LayerShape, pages_of
from lp.model.memory import LIKELY_TOKENS, MARGIN, DoesNotFit

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


def make_memory(
    setting: str,
    shapes: Mapping[int, LayerShape],
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int,
    in_runs: bool,
    num_sharing: int = 1,
) -> KVMemory:
    """The memory that the setting allows, which is logged with numbers. On a GPU it is allocated at once.

    The weights must be loaded. "auto" is on a GPU what is free but for MARGIN of the whole, and on a CPU CPU_SHARE of
    what is available, divided among the ranks that share it.

    shapes: of the layers that are held here. num_layers: of the model. max_length: the most tokens of a sequence.
    in_runs: see Arena. num_sharing: the number of ranks in this machine's memory. Raises ValueError if there is no room
    for one sequence.
    """
    page_bytes = PAGE * dtype.itemsize * sum(shape.numbers for shape in shapes.values())
    given = parse_bound(setting)
    size, reason = (given, "") if given is not None else _auto(device, num_sharing)
    reserved = 1 if device.type == "cuda" else 0  # the page of padding rows
    num_pages = int(size // page_bytes) - reserved
    needed = pages_of(min(max_length, LIKELY_TOKENS)) + 1
    if num_pages < needed:
        raise DoesNotFit(
            f"model.kv_memory={setting}{reason} is {size / 1e9:.3g} GB, and the keys and values of one sequence of "
            f"{min(max_length, LIKELY_TOKENS):,} tokens and the rows of a step need "
            f"{(needed + reserved) * page_bytes / 1e9:.3g} GB; use a higher model.kv_memory, a lower model.max_length, "
            "or model.dtype=bfloat16"
        )
    log.info("%s", _describe(setting + reason, num_pages, page_bytes, max_length))
    if device.type == "cuda":
        return Arena(shapes, num_layers, num_pages, dtype, device, in_runs)
    return ContiguousMemory(num_layers, num_pages)


def _auto(device: torch.device, num_sharing: int) -> tuple[float, str]:
    """The bytes of "auto", and in words how they are found."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading and checking have freed
        free, total = torch.cuda.mem_get_info(device)
        return max(0.0, free - MARGIN * total), f" (what is free on {device}, but for {MARGIN:.0%} of it)"
    size = CPU_SHARE * psutil.virtual_memory().available / num_sharing
    shared = f", shared by {num_sharing} ranks" if num_sharing > 1 else ""
    return size, f" ({CPU_SHARE:.0%} of the memory that is available{shared})"


def _describe(setting: str, num_pages: int, page_bytes: int, max_length: int) -> str:
    """How many tokens and sequences fit."""
    num_tokens = num_pages * PAGE
    whole = num_pages // pages_of(max_length + 1)
    sequences = f"{whole:,} sequence(s) of the whole context of {max_length:,} tokens"
    if not whole:
        sequences = f"less than the whole context of {max_length:,} tokens"
    size = num_pages * page_bytes / 1e9
    return f"keys and values: {size:.3g} GB with model.kv_memory={setting}, for {num_tokens:,} tokens: {sequences}"
