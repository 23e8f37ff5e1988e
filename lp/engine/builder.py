"""What an engine is assembled from: its settings, and its rank's place among the ranks of a run.

`Engine.assemble` is the only function that puts an engine together. A single device, a rank under torchrun and a rank
under a supervisor differ only in the `Topology` that they pass to it. Knows nothing of how ranks communicate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lp.drafting.answer_index import FILE_NAME, AnswerIndex, read_index
from lp.drafting.corpus import Corpus, read_corpus, vocabulary_digest
from lp.engine.input import RequestBuilder
from lp.methods.registry import DEFAULT
from lp.model.attention import AttentionSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint, ModelSettings, Reader, load
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.gpu.cuda_graphs import Capture
from lp.model.heads.hidden import can_give_hidden
from lp.model.program.group import RankGroup
from lp.model.second_model import DRAFT, SECOND, SecondModel, SecondModelExtension, vocabulary_of
from lp.platform.library import require_on_all
from lp.request import DecodeLimits, DecodingMethod, ModelTraits
from lp.runner.runner import Runner
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import Broadcast, StepTimesFile, resolve_step_times
from lp.runner.step_times.measure import StepTimesSource, measure_relative_costs
from lp.sampling.settings import Sampling
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import SchedulerSettings
from lp.step_cost import StepTimes

log = logging.getLogger("lookahead")

# Before a checkpoint is read, it may have any heads.
UNKNOWN_HEADS = (1, 1)

# Writes step times that were learnt to the disk.
KeepTimes = Callable[[StepTimes], None]


@dataclass
class EngineSettings:
    """The settings of an engine.

    model: the checkpoint, its dtype and its device. decode: the method for requests that choose none; None is auto.
    sampling: defaults for what a request leaves open. attention: how attention is computed. limits: the most that a
    request may ask for. step_times: where decode=auto gets its step times from. index: the file of the model's answers
    that launch/index.py made, for decode=auto; auto is the one beside the weights if there is one, off is none.
    corpus: the file of texts that launch/index.py corpus=FILES made, for decode=auto; off is none. scheduler: how steps
    are filled. draft: a second model that drafts for decode=draft_model and decode=auto. second: a model that
    decode=contrastive and decode=best_of compare with.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    decode: DecodingMethod | None = None
    sampling: Sampling = field(default_factory=Sampling)
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    limits: DecodeLimits = field(default_factory=DecodeLimits)
    step_times: StepTimesSource = StepTimesSource.auto
    index: str = "auto"
    corpus: str = "off"
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    draft: SecondModel = field(default_factory=SecondModel)
    second: SecondModel = field(default_factory=SecondModel)

    def second_models(self, holds_all: bool) -> list[SecondModelExtension]:
        """Those that are to be loaded. Their roles are the names of their settings. holds_all: see Topology."""
        named, kind = {DRAFT: self.draft, SECOND: self.second}, self.attention.kind
        return [SecondModelExtension(role, one, kind, holds_all) for role, one in named.items() if one.is_there]


class Topology(Protocol):
    """A rank's place among the ranks of a run.

    reader: reads the weights that this rank holds; None reads all of them. capture, group: see `load`. fingerprints:
    whether the ranks compare checksums of their state in every step. mode: a JSON value that names this way of running
    the model; step times are stored separately for each mode. broadcast: gives every rank the JSON value of rank 0.
    num_sharing: the number of ranks in this device's memory. is_alone: whether there are no other ranks. holds_all:
    whether each rank holds the whole model, and may hold all keys and values of a sequence that others compute.
    is_leader: whether this rank decides for the others, once they have met.
    """

    @property
    def reader(self) -> Reader | None: ...

    @property
    def capture(self) -> Capture | None: ...

    @property
    def group(self) -> RankGroup | None: ...

    @property
    def fingerprints(self) -> bool: ...

    @property
    def mode(self) -> Any: ...

    @property
    def broadcast(self) -> Broadcast: ...

    @property
    def num_sharing(self) -> int: ...

    @property
    def is_alone(self) -> bool: ...

    @property
    def holds_all(self) -> bool: ...

    @property
    def is_leader(self) -> bool: ...

    def least(self, value: int, /) -> int:
        """The least value of any rank, once they have met."""
        ...

    def on_loaded(self, checkpoint: Checkpoint, /) -> None:
        """Called once the weights are loaded and checked, before `runner`."""
        ...

    def runner(self, model: CausalModel, prefill_chunk: int | None, has_draft: bool) -> Runner:
        """Meets the other ranks, if there are any, and makes the runner that this rank decodes with.

        has_draft: whether there is a draft model.
        """
        ...


class SingleProcess:
    """The place of an engine on one device, without other ranks."""

    reader: Reader | None = None
    capture: Capture | None = None
    group: RankGroup | None = None
    fingerprints = False
    mode: Any = "single"
    num_sharing: int = 1
    is_alone: bool = True
    holds_all: bool = True
    is_leader: bool = True

    def broadcast(self, value: Any) -> Any:
        return value

    def least(self, value: int, /) -> int:
        return value

    def on_loaded(self, checkpoint: Checkpoint, /) -> None:
        """Nothing to do."""

    def runner(self, model: CausalModel, prefill_chunk: int | None, has_draft: bool) -> Runner:
        return SingleDevice(model, prefill_chunk)


def find_step_times(
    request_builder: RequestBuilder,
    source: StepTimesSource,
    model: CausalModel,
    runner: Runner,
    mode: Any,
    broadcast: Broadcast,
) -> StepTimes | None:
    """The runner's step times, the same on all ranks. All ranks must call this before they serve.

    Returns None if the default decoding method does not choose the rows of its steps. mode, broadcast: see `Topology`.
    """
    if not request_builder.decode.row_bounds().by_time:
        return None
    decode = _timed_method(request_builder)
    return resolve_step_times(source, model, runner, decode.most_rows(), mode, broadcast, decode.measure_host)


def time_draft_model(checkpoint: Checkpoint, runner: Runner, broadcast: Broadcast) -> None:
    """Measures what a draft model costs, if there is one. All ranks call this together; broadcast: see `Topology`."""
    draft = checkpoint.extensions.get(DRAFT)
    if draft is not None and draft.model is not None:
        draft.relative_costs = measure_relative_costs(runner, checkpoint.model, draft.model, broadcast)


def agree_on_costs(checkpoint: Checkpoint, least: Callable[[int], int]) -> None:
    """Has all ranks take the least costs of second models that one has found. least: see `Topology`."""
    for _, second in sorted(checkpoint.extensions.items()):
        if second.model is not None:
            costs = second.relative_costs
            second.relative_costs = tuple(least(max(1, round(1000 * cost))) / 1000 for cost in costs)


def step_times_file(request_builder: RequestBuilder, model: CausalModel, mode: Any) -> StepTimesFile:
    """Where the runner's step times are kept. mode: see `Topology`."""
    return StepTimesFile(model, _timed_method(request_builder).most_rows(), mode)


def _timed_method(request_builder: RequestBuilder) -> DecodingMethod:
    """The method whose most rows, and whose work on the host, belong to the step times."""
    decode = request_builder.decode
    return decode if decode.measures_host else DEFAULT()


def check_files(index: str, corpus: str) -> None:
    """Raises ValueError if one of these settings (see EngineSettings) names what is no file."""
    if index not in ("auto", "off") and not Path(index).expanduser().is_file():
        raise ValueError(f"index={index} is not a file; make it with launch/index.py, or use index=off")
    if corpus != "off" and not Path(corpus).expanduser().is_file():
        raise ValueError(f"corpus={corpus} is not a file; make it with launch/index.py corpus=FILES, or use corpus=off")


def find_index(setting: str, checkpoint: CheckpointInfo) -> AnswerIndex | None:
    """The index that a setting names (see EngineSettings). Raises ValueError if a file that was named cannot be used.

    An index beside the weights that cannot be used is ignored, with a warning.
    """
    if setting == "off":
        return None
    beside = Path(checkpoint.path) / FILE_NAME
    if setting == "auto" and not beside.is_file():
        return None
    try:
        index = read_index(beside if setting == "auto" else Path(setting).expanduser(), checkpoint.vocab_size)
    except ValueError as error:
        if setting != "auto":
            raise
        log.warning("%s", error)
        return None
    log.info(
        "index of answers: after %s pairs of tokens and %s tokens", f"{index.num_pairs:,}", f"{index.num_tokens:,}"
    )
    return index


def find_corpus(setting: str, checkpoint: CheckpointInfo) -> Corpus | None:
    """The corpus that a setting names (see EngineSettings). Raises ValueError if the file cannot be used."""
    if setting == "off":
        return None
    vocabulary = vocabulary_digest(vocabulary_of(checkpoint))
    corpus = read_corpus(Path(setting).expanduser(), checkpoint.vocab_size, vocabulary)
    log.info("corpus of texts: %s tokens", f"{len(corpus.places):,}")
    return corpus


def digests_of(index: AnswerIndex | None, corpus: Corpus | None) -> list[str | None]:
    """What ranks compare to know that they have the same index and the same corpus; a JSON value."""
    return [index and index.digest, corpus and corpus.digest]


def require_same_files(index: AnswerIndex | None, corpus: Corpus | None, expected: list[str | None]) -> None:
    """Raises ValueError unless this rank has the files of rank 0: ranks with others would make other trees.

    expected: rank 0's digests.
    """
    files = ("index", "index of answers"), ("corpus", "corpus of texts")
    for (setting, what), own, first in zip(files, digests_of(index, corpus), expected, strict=True):
        if own != first:
            raise ValueError(
                f"this rank has another {what} than the first rank ({own or 'none'} instead of {first or 'none'}); "
                f"give every host the same file with {setting}=FILE, or use {setting}=off"
            )


def require_same_heads(checkpoint: CheckpointInfo, expected: str | None) -> None:
    """Raises ValueError unless this rank has the same heads as rank 0, whose digest is given."""
    if checkpoint.heads_digest != expected:
        raise ValueError(
            f"this rank has other heads than the first rank ({checkpoint.heads_digest or 'none'} instead of "
            f"{expected or 'none'}); give every host the same files with model.heads=FOLDER, or use model.heads=off"
        )


class EngineParts(NamedTuple):
    """What `Engine` is made of; see there."""

    checkpoint: Checkpoint
    runner: Runner
    request_builder: RequestBuilder
    fingerprints: bool
    step_times: StepTimes | None
    index: AnswerIndex | None
    budget: KVBudget
    scheduler: SchedulerSettings
    keep_times: KeepTimes | None
    corpus: Corpus | None
    is_alone: bool


def make_parts(settings: EngineSettings, place: Topology) -> EngineParts:
    """See `Engine.assemble`."""
    second_models = settings.second_models(place.holds_all)
    roles = [one.role for one in second_models]
    decode = settings.decode or DEFAULT()
    decode.check(settings.limits)  # at once, not after minutes of loading
    settings.sampling.check()
    decode.check_model(ModelTraits(settings.model.path, roles, UNKNOWN_HEADS))
    check_files(settings.index, settings.corpus)
    settings.scheduler.check()
    if decode.lossy:
        log.warning("decode.verify=%s is lossy: texts are not the model's own", decode.lossy)
    kind = settings.attention.kind
    ranks = place.reader, place.num_sharing, place.capture
    checkpoint = load(settings.model, kind, *ranks, second_models, place.group, place.is_alone)
    if len(second_models := [one for one in second_models if one.role in checkpoint.extensions]) < len(roles):
        roles = [one.role for one in second_models]  # one did not fit
        decode.check_model(ModelTraits(settings.model.path, roles, UNKNOWN_HEADS))
    request_builder = RequestBuilder(checkpoint, settings.decode, settings.sampling, settings.limits, roles)
    index, corpus = find_index(settings.index, checkpoint), find_corpus(settings.corpus, checkpoint)
    place.on_loaded(checkpoint)
    runner = place.runner(checkpoint.model, settings.attention.prefill_chunk, DRAFT in checkpoint.extensions)
    request_builder.embeds = not checkpoint.plain and can_give_hidden(checkpoint.model)
    budget = KVBudget(place.least(min(model.memory.num_pages for model in checkpoint.models)))
    if runner.num_parts > 1:
        log.info("%s", budget.describe())
    for model in checkpoint.models:
        model.memory.limit(budget.num_pages)  # ranks of one replica must evict alike
    require_same_files(index, corpus, place.broadcast(digests_of(index, corpus)))
    require_same_heads(checkpoint, place.broadcast(checkpoint.heads_digest))
    require_on_all(place.least)
    times = find_step_times(request_builder, settings.step_times, checkpoint.model, runner, place.mode, place.broadcast)
    if times:
        time_draft_model(checkpoint, runner, place.broadcast)
    agree_on_costs(checkpoint, place.least)
    keep = None
    if times and place.is_leader and settings.step_times.learns:
        keep = step_times_file(request_builder, checkpoint.model, place.mode).keep
    return EngineParts(
        checkpoint, runner, request_builder, place.fingerprints, times, index, budget, settings.scheduler, keep, corpus,
        place.is_alone,
    )  # fmt: skip
