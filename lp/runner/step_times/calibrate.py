"""Provides the step times by which decoders decide: kept from an earlier run on this machine, or measured now.

Decoders run the same state machine on every rank, so all ranks must have the same step times to the last bit: rank 0
sends its own to the others. Knows nothing of how step times are used.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from lp.model.causal import CausalModel
from lp.platform import disk_cache
from lp.platform.hardware import device_name, dtype_name
from lp.platform.library import library
from lp.runner.runner import Runner
from lp.runner.step_times.answering import measure_answering
from lp.runner.step_times.copies import measure_copies
from lp.runner.step_times.measure import StepTimesSource, describe, measure_step_times, still_holds
from lp.runner.step_times.sequences import measure_sequences
from lp.step_cost import StepTimes

log = logging.getLogger("lookahead")

# To be raised when the figures of an existing file would have another meaning.
FORMAT = 7

# Takes each rank's JSON value and returns rank 0's on every rank.
Broadcast = Callable[[Any], Any]

# Measures the seconds of the host's own work: in each step, and for each row of its tree.
MeasureHost = Callable[[], tuple[float, float]]


def resolve_step_times(
    source: StepTimesSource,
    model: CausalModel,
    runner: Runner,
    most_rows: int,
    mode: Any = "single",
    broadcast: Broadcast = lambda value: value,
    measure_host: MeasureHost = lambda: (0.0, 0.0),
) -> StepTimes | None:
    """The step times for this run; None if the source is `off`. Every rank of a group calls this before it serves.

    most_rows: the most rows of a step that is measured. mode: JSON values that distinguish this way of running the
    model from others; figures are kept for each separately. broadcast: returns rank 0's value on every rank.
    measure_host: see MeasureHost.
    """
    if source is StepTimesSource.off:
        return None
    path = _path(model, most_rows, mode)
    kept = _read(path) if path and source is StepTimesSource.auto else None
    shared = broadcast(kept.to_dict() if kept else None)
    if shared is not None:
        holds = still_holds(StepTimes.from_dict(shared), runner, model.vocab_size, model.max_length, broadcast)
        shared = shared if holds else None
    if shared is None:
        log.info("measuring the time of a step by its rows, once for this model and machine")
        measured = measure_step_times(runner, model.vocab_size, model.max_length, most_rows, broadcast)
        sequence_s, thousand_cached_s = measure_sequences(runner, model.vocab_size, model.max_length, broadcast)
        copy_s, copied_token_s = measure_copies(runner, model.vocab_size, model.max_length)
        host_step, host_row = measure_host()
        extras = dataclasses.replace(
            measure_answering(model.vocab_size, model.device),
            host_step=host_step, host_row=host_row, sequence=sequence_s, thousand_cached=thousand_cached_s,
            copy=copy_s, copied_token=copied_token_s,
        )  # fmt: skip
        log.info(
            "milliseconds of a step by its rows: %s; of one more sequence: %.2f, of 1000 more cached tokens: %.2f%s",
            describe(measured), 1000 * sequence_s, 1000 * thousand_cached_s,
            f", of copying 1000 tokens to another rank: {1000 * extras.copies(1000):.1f}" if copied_token_s else "",
        )  # fmt: skip
        shared = broadcast(dataclasses.replace(measured, extras=extras).to_dict())
        if path:
            disk_cache.write_json(path, shared)
    return StepTimes.from_dict(shared)


def _read(path: Path) -> StepTimes | None:
    """The step times in a file; None if there is no file, or one that holds something else."""
    if (values := disk_cache.read_json(path)) is None:
        return None
    try:
        return StepTimes.from_dict(values)
    except ValueError as error:
        log.warning("%s is ignored: %s", path, error)
        return None


def _path(model: CausalModel, most_rows: int, mode: Any) -> Path | None:
    """The file in which figures for this model, machine and mode are kept; None if nothing can be kept."""
    kept = disk_cache.folder("step-times")
    if kept is None:
        return None
    config = {key: value for key, value in model.model.config.to_dict().items() if key != "_name_or_path"}
    facts = [
        FORMAT, config, model.dtype, model.max_length, model.attention_kind, type(model.fast).__name__,
        device_name(model.device), platform.machine(), torch.get_num_threads(), mode, most_rows,
        torch.__version__, transformers.__version__, library() is not None,
    ]  # fmt: skip
    dtype = dtype_name(model.dtype)
    return kept / f"{type(model.model).__name__}-{dtype}-{disk_cache.digest(facts)}.json"
