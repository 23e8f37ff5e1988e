"""What an engine is assembled from: its settings, and the place of its rank among the ranks of a run.

`Engine.assemble` is the only function that puts an engine together. What differs between a single device, a rank under
torchrun and a rank under a supervisor is its `Place`. Knows nothing of how ranks talk to each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from lp.calibration.calibrate import Tell, resolve_step_times
from lp.calibration.measure import StepTimesSource
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
    """model: which one, and how it is held. decode: for requests that do not choose; None is `Auto`. sampling: what
    holds where a request leaves it open. attention: how it is computed. limits: the most that a request may ask for.
    step_times: where the step times that decode=auto chooses by come from.
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
    checksums of their state in every step. mode: JSON values that tell this way of running the model from others, for
    the file in which step times are kept. tell: gives every rank the JSON value of rank 0.
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
        """Called once the weights are there, before anything is computed with them but the check at load."""
        ...

    def runner(self, model: CausalModel, prefill_chunk: int) -> Runner:
        """Meets the other ranks, if there are any; the runner that all of them decode with."""
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
    """Step times of the runner, the same on all ranks, which all call this before they serve.

    None unless requests that do not choose a decoding method need them: those of decode=auto without a fixed number of
    rows. mode, tell: see `Place`.
    """
    decode = request_builder.decode
    if not isinstance(decode, Auto) or decode.rows:
        return None
    return resolve_step_times(source, model, runner, decode.max_rows, mode, tell)
