"""What an engine is assembled from: its settings, and its rank's place among the ranks of a run.

`Engine.assemble` is the only function that puts an engine together. A single device, a rank under torchrun and a rank
under a supervisor differ only in the `Place` that they pass to it. Knows nothing of how ranks communicate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from lp.calibration.calibrate import Tell, resolve_step_times
from lp.calibration.measure import StepTimesSource
from lp.decoding.host_time import measure_host
from lp.methods import Auto, DecodeLimits, DecodeSettings
from lp.model.attention import AttentionSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint, ModelSettings, Reader
from lp.request_builder import RequestBuilder
from lp.runner import Runner
from lp.sampling.settings import Sampling
from lp.single_device import SingleDevice
from lp.step_cost import StepTimes


@dataclass
class EngineSettings:
    """The settings of an engine.

    model: the checkpoint, its dtype and its device. decode: the method for requests that choose none; None is `Auto`.
    sampling: defaults for what a request leaves open. attention: how attention is computed. limits: the most that a
    request may ask for. step_times: where decode=auto gets its step times from.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    decode: DecodeSettings | None = None
    sampling: Sampling = field(default_factory=Sampling)
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    limits: DecodeLimits = field(default_factory=DecodeLimits)
    step_times: StepTimesSource = StepTimesSource.auto


class Place(Protocol):
    """A rank's place among the ranks of a run.

    reader: reads the weights that this rank holds; None reads all of them. fingerprints: whether the ranks compare
    checksums of their state in every step. mode: a JSON value that names this way of running the model; step times are
    stored separately for each mode. tell: gives every rank the JSON value of rank 0.
    """

    @property
    def reader(self) -> Reader | None: ...

    @property
    def fingerprints(self) -> bool: ...

    @property
    def mode(self) -> Any: ...

    @property
    def tell(self) -> Tell: ...

    def on_loaded(self, checkpoint: Checkpoint, /) -> None:
        """Called once the weights are loaded and checked, before `runner`."""
        ...

    def runner(self, model: CausalModel, prefill_chunk: int) -> Runner:
        """Meets the other ranks, if there are any, and makes the runner that this rank decodes with."""
        ...


class Alone:
    """The place of an engine on one device, without other ranks."""

    reader: Reader | None = None
    fingerprints = False
    mode: Any = "single"

    def tell(self, value: Any) -> Any:
        return value

    def on_loaded(self, checkpoint: Checkpoint, /) -> None:
        """Nothing to do."""

    def runner(self, model: CausalModel, prefill_chunk: int) -> Runner:
        return SingleDevice(model, prefill_chunk)


def find_step_times(
    request_builder: RequestBuilder, source: StepTimesSource, model: CausalModel, runner: Runner, mode: Any, tell: Tell
) -> StepTimes | None:
    """The runner's step times, the same on all ranks. All ranks must call this before they serve.

    Returns None if the default decoding method does not need them: only decode=auto does, and only without a fixed
    number of rows. mode, tell: see `Place`.
    """
    decode = request_builder.decode
    if not isinstance(decode, Auto) or decode.rows:
        return None
    return resolve_step_times(source, model, runner, decode.max_rows, mode, tell, lambda: measure_host(decode))
