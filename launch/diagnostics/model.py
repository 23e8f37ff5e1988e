"""What a checkpoint needs and which modes it can run in, found without reading its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from launch.config.runtime import RuntimeSettings
from launch.diagnostics.findings import Finding
from lp.model.checkpoint import pick_device, pick_dtype, weight_bytes
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info
from lp.model.compilation import ExpectedForward, expect_forward
from lp.model.errors import one_line
from lp.model.exactness import FAILURES
from lp.model.memory import cache_bytes, num_parameters
from lp.platform.hardware import dtype_name
from parallel import build

SECTION = "the model"
# Degrees of tensor and pipeline parallelism that are asked about.
DEGREES = (2, 4, 8)


def inspect(settings: RuntimeSettings, bytes_per_s: float | None) -> Iterator[Finding]:
    """bytes_per_s: at which the memory that will hold the weights is read; None if it was not measured."""
    model = settings.model
    try:
        known = read_checkpoint_info(model.path, model.max_length, model.grammar_backend, model.heads)
        dtype = pick_dtype(model.dtype, pick_device(model.device), known.config)
        size = weight_bytes(known, dtype, model.weights) or num_parameters(Path(known.path)) * dtype.itemsize
    except (ValueError, OSError) as error:
        yield Finding(SECTION, "checkpoint", f"{model.path} cannot be used: {error}", is_broken=True)
        return
    trees = "token trees: all methods can draft" if not known.plain else f"one token a step, as {known.plain}"
    yield Finding(SECTION, "steps", trees, "plain" if known.plain else "trees")
    if size:
        yield Finding(SECTION, "weights", f"{size / 1e9:.2f} GB in {dtype_name(dtype)}", size)
        if bytes_per_s:
            seconds = size / bytes_per_s
            text = f"{1000 * seconds:.1f} ms to read all weights once, which is about the least that a step takes"
            yield Finding(SECTION, "step", text, {"seconds": seconds})
    device = pick_device(model.device)
    try:
        expected, unknown = expect_forward(known, model.compile, device, dtype), ""
    except FAILURES as error:
        expected, unknown = ExpectedForward(), one_line(error)
    if not known.plain:
        if expected.cache_shapes is None:
            cached = cache_bytes(known.config, dtype, 1000)
        else:
            cached = 1000 * dtype.itemsize * sum(shape.numbers for shape in expected.cache_shapes.values())
        text = f"{cached / 1e6:.1f} MB for each 1,000 tokens of a text, of at most {known.max_length:,} tokens"
        yield Finding(SECTION, "keys and values", text, cached)
    if unknown:
        yield Finding(SECTION, "forward", f"not known before the model is loaded: {unknown}")
    else:
        yield forward(expected.reason, device)
    yield modes(known)


def forward(reason: str, device: torch.device) -> Finding:
    """Which forward the model would have, and why no other. reason: see ExpectedForward."""
    if reason:
        return Finding(SECTION, "forward", f"eager: transformers' own, as {reason}", "eager")
    if device.type == "cuda":
        return Finding(SECTION, "forward", "compiled: fused kernels for the GPU, as CUDA graphs", "compiled")
    return Finding(SECTION, "forward", "native: C++ that is compiled for this model and machine", "native")


def modes(known: CheckpointInfo) -> Finding:
    """How several ranks can share the model."""
    if known.plain:
        return Finding(SECTION, "modes", "parallel=single alone", {"lp": False, "tp": [], "pp": []})
    found = {axis: [degree for degree in DEGREES if _can_split(known, axis, degree)] for axis in ("tp", "pp")}
    texts = [
        f"{axis} over {', '.join(map(str, degrees))} ranks" if degrees else f"no {axis}"
        for axis, degrees in found.items()
    ]
    return Finding(SECTION, "modes", f"lp, dp, {', '.join(texts)}", {"lp": True, **found})


def _can_split(known: CheckpointInfo, axis: str, degree: int) -> bool:
    try:
        build.check(known.config, {axis: degree})
    except ValueError:
        return False
    return True
