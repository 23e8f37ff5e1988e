"""The step times that a run decides by: kept from an earlier run with this model on this machine, or measured now.

Decoders are the same state machine on every rank, so what they decide by must be the same on all to the last bit: rank
0 tells the others what it has.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from lp import cache_files
from lp.calibration.measure import StepTimesSource, describe, measure_step_times, still_holds
from lp.hardware import device_name
from lp.model.causal import CausalModel
from lp.runner import Runner
from lp.step_cost import StepTimes

log = logging.getLogger("lookahead")

FORMAT = 2
"""Changes when figures of the same key would mean something else."""

Tell = Callable[[Any], Any]
"""Makes of each rank's JSON value that of rank 0."""


def resolve_step_times(
    source: StepTimesSource,
    model: CausalModel,
    runner: Runner,
    most_rows: int,
    mode: Any = "single",
    tell: Tell = lambda value: value,
) -> StepTimes | None:
    """Every rank calls this before it serves. None if they are off.

    most_rows: up to which a step is measured. mode: JSON values that tell one way of running the model from another.
    """
    if source is StepTimesSource.off:
        return None
    path = _path(model, most_rows, mode)
    kept = _read(path) if path and source is StepTimesSource.auto else None
    told = tell(kept.to_dict() if kept else None)
    if told is not None:
        holds = still_holds(StepTimes.from_dict(told), runner, model.vocab_size, model.max_length)
        told = told if tell(holds) else None
    if told is None:
        log.info("measuring the time of a step by its rows, once for this model and machine")
        measured = measure_step_times(runner, model.vocab_size, model.max_length, most_rows, tell)
        log.info("milliseconds of a step by its rows: %s", describe(measured))
        told = tell(measured.to_dict())
        if path:
            cache_files.write_json(path, told)
    return StepTimes.from_dict(told)


def _read(path: Path) -> StepTimes | None:
    """What is kept there, or None; a file that holds something else is as good as none."""
    if (values := cache_files.read_json(path)) is None:
        return None
    try:
        return StepTimes.from_dict(values)
    except ValueError as error:
        log.warning("%s is ignored: %s", path, error)
        return None


def _path(model: CausalModel, most_rows: int, mode: Any) -> Path | None:
    """Where figures are kept for this model, machine and mode; None if nothing can be kept."""
    kept = cache_files.folder("step-times")
    if kept is None:
        return None
    config = {key: value for key, value in model.model.config.to_dict().items() if key != "_name_or_path"}
    facts = [
        FORMAT, config, model.dtype, model.max_length, model.attention_kind, type(model.fast).__name__,
        device_name(model.device), platform.machine(), torch.get_num_threads(), mode, most_rows,
        torch.__version__, transformers.__version__,
    ]  # fmt: skip
    dtype = str(model.dtype).removeprefix("torch.")
    return kept / f"{type(model.model).__name__}-{dtype}-{cache_files.digest(facts)}.json"
