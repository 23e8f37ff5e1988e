"""Provides the step times with which a program begins: kept from an earlier run on this machine, or measured now.

Decoders run the same state machine on every rank, so all ranks must have the same step times to the last bit: rank 0
sends its own to the others. Knows nothing of how step times are used.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import platform
import time
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
from lp.runner.step_times.answering import ROUNDS as ANSWERING_ROUNDS
from lp.runner.step_times.answering import measure_answering
from lp.runner.step_times.copies import measure_copies
from lp.runner.step_times.measure import QUICK, THOROUGH, StepTimesSource, describe, measure_step_times, origin
from lp.runner.step_times.sequences import measure_sequences
from lp.step_cost import CACHED, StepTimes

log = logging.getLogger("lookahead")

# To be raised when the figures of an existing file would have another meaning.
FORMAT = 9
# Of a few quick steps: rounds of choosing tokens, tokens that are copied, and what a sequence is thought to add to a
# step, as a share of it.
QUICK_ROUNDS, QUICK_COPIED, SEQUENCE_SHARE = 3, 96, 0.02
# Seconds between two times that a server writes what it has learnt.
KEPT_EVERY_S = 20.0

# Takes each rank's JSON value and returns rank 0's on every rank.
Broadcast = Callable[[Any], Any]

# Measures the seconds of the host's own work: in each step, and for each row of its tree.
MeasureHost = Callable[[], tuple[float, float]]


class StepTimesFile:
    """Where step times of one model, machine and way of running are kept between runs."""

    def __init__(self, model: CausalModel, most_rows: int, mode: Any):
        """most_rows, mode: see `resolve_step_times`."""
        self._path = _path(model, most_rows, mode)
        self._written_at = -math.inf

    def read(self) -> StepTimes | None:
        """None if there are none, or something else."""
        if self._path is None or (values := disk_cache.read_json(self._path)) is None:
            return None
        try:
            return StepTimes.from_dict(values)
        except ValueError as error:
            log.warning("%s is ignored: %s", self._path, error)
            return None

    def write(self, times: StepTimes) -> None:
        self._written_at = time.monotonic()
        if self._path is not None:
            disk_cache.write_json(self._path, times.to_dict())

    def keep(self, times: StepTimes) -> None:
        """Writes times that have changed a little, if the last ones were not written a moment ago."""
        if time.monotonic() - self._written_at > KEPT_EVERY_S:
            self.write(times)


def resolve_step_times(
    source: StepTimesSource,
    model: CausalModel,
    runner: Runner,
    most_rows: int,
    mode: Any = "single",
    broadcast: Broadcast = lambda value: value,
    measure_host: MeasureHost = lambda: (0.0, 0.0),
) -> StepTimes | None:
    """The step times to begin with; None if the source is `off`. Every rank of a group calls this before it serves.

    most_rows: the most rows of a step that is measured. mode: JSON values that distinguish this way of running the
    model from others; figures are kept for each separately. broadcast: returns rank 0's value on every rank.
    measure_host: see MeasureHost.
    """
    if source is StepTimesSource.off:
        return None
    file = StepTimesFile(model, most_rows, mode)
    kept = None if source is StepTimesSource.measure else file.read()
    shared = broadcast(kept.to_dict() if kept else None)
    if shared is not None:
        times = StepTimes.from_dict(shared)
        log.info("milliseconds of a step by its rows, %s: %s", origin(times), describe(times))
        return times
    is_thorough = source is not StepTimesSource.auto
    if is_thorough:
        log.info("measuring the time of a step by its rows")
    effort = THOROUGH if is_thorough else QUICK
    measured = measure_step_times(runner, model.vocab_size, model.max_length, most_rows, broadcast, effort)
    host_step, host_row = measure_host()
    answering = measure_answering(model.vocab_size, model.device, ANSWERING_ROUNDS if is_thorough else QUICK_ROUNDS)
    if is_thorough:
        sequence_s, thousand_cached_s = measure_sequences(runner, model.vocab_size, model.max_length, broadcast)
    else:
        sequence_s, thousand_cached_s = SEQUENCE_SHARE * measured.seconds[0], _thousand_cached_s(model, measured)
    copy_s, copied_token_s = measure_copies(
        runner, model.vocab_size, model.max_length, 2 * CACHED if is_thorough else QUICK_COPIED
    )
    extras = dataclasses.replace(
        answering, host_step=host_step, host_row=host_row, sequence=sequence_s, thousand_cached=thousand_cached_s,
        copy=copy_s, copied_token=copied_token_s,
    )  # fmt: skip
    log.info(
        "milliseconds of a step by its rows%s: %s; of one more sequence: %.2f, of 1000 more cached tokens: %.2f%s",
        "" if is_thorough else ", by a few steps", describe(measured), 1000 * sequence_s, 1000 * thousand_cached_s,
        f", of copying 1000 tokens to another rank: {1000 * extras.copies(1000):.1f}" if copied_token_s else "",
    )  # fmt: skip
    shared = broadcast(dataclasses.replace(measured, extras=extras).to_dict())
    times = StepTimes.from_dict(shared)
    file.write(times)
    return times


def _thousand_cached_s(model: CausalModel, times: StepTimes) -> float:
    """About the seconds that a thousand more cached tokens take, as they are read about as fast as the weights."""
    num_bytes = 1000 * model.numbers_per_token * model.dtype.itemsize
    return times.seconds[0] * num_bytes / model.weight_bytes


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
