"""What a mode of parallelism means for one rank: which weights it reads, and the runner that it decodes with.

`MeshTopology` is the topology of a run whose ranks all take part from beginning to end.
`EpochTopology` is that of a rank that holds a whole model and joins one epoch after another. See `Engine.assemble`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch.distributed import Store
from transformers import PreTrainedConfig

from lp.engine.builder import SingleProcess
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint, Reader
from lp.model.gpu.cuda_graphs import Capture
from lp.model.program.group import RankGroup
from lp.runner.runner import Runner
from lp.runner.single_device import SingleDevice
from parallel.comm.base import Messages, Traffic
from parallel.comm.channel import Channel
from parallel.comm.connect import connect, connect_axis
from parallel.mesh import Mesh, Mode, ParallelSettings
from parallel.runners.copying import checksum_of_caches
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.runners.sharing import Sharing
from parallel.runners.tensor import TensorParallel
from parallel.sharding.stages import check_stages, read_stage
from parallel.sharding.tensor import capture_together, check_degree, read_sharded


def check(config: PreTrainedConfig, degrees: Mapping[str, int]) -> None:
    """Checks that a model can be split.

    degrees: by the name of the axis. Raises ValueError, or UnsupportedArchitecture, if it cannot.
    """
    if (tp := degrees.get("tp", 1)) > 1:
        check_degree(config, tp)
    if (pp := degrees.get("pp", 1)) > 1:
        check_stages(config, pp)


def share_steps(
    alone: SingleDevice,
    channel: Channel,
    mode: Mode = Mode.auto,
    ranks_per_replica: int = 1,
    has_draft: bool = False,
) -> Runner:
    """The runner with which replicas share batches. A single rank keeps its own runner. All ranks call this together.

    mode: says which replica computes what. ranks_per_replica: number of neighbouring ranks that hold one replica
    together. has_draft: whether there is a draft model. Raises RankLost.
    """
    if channel.num_ranks == 1:
        return alone
    is_dp = Mode(mode) is Mode.dp
    drafts_ahead = has_draft and not is_dp and ranks_per_replica == 1
    messages, prefill_chunk = find_messages(alone, channel), channel.least(alone.prefill_chunk)
    return LookaheadParallel(
        alone, channel, ranks_per_replica, messages, Sharing(is_dp=is_dp), prefill_chunk, drafts_ahead
    )


def find_messages(alone: SingleDevice, channel: Channel) -> Messages | None:
    """The messages by which replicas copy keys and values; None if those of one cannot be used by all others.

    All ranks call this together. Raises RankLost.
    """
    if channel.messages is None:
        return None
    own = checksum_of_caches(alone)
    return channel.messages if (channel.compare(np.array([own], np.int32)) == own).all() else None


def describe_mode(settings: ParallelSettings, mesh: Mesh) -> list[Any]:
    """JSON values that name a way of running a model: steps take a different time in each."""
    described = [dict(mesh.axes), mesh.num_local_ranks, str(settings.exchange), settings.delay_us]
    return [*described, str(settings.mode)] if Mode(settings.mode) is Mode.dp else described


# Called with the checkpoint once its weights are loaded.
OnLoaded = Callable[[Checkpoint], None]


def ignore(checkpoint: Checkpoint) -> None:
    """An OnLoaded that does nothing."""


class MeshTopology:
    """See `Topology`. The ranks that share a replica meet when the place is made; all ranks meet in `runner`.

    replica: collectives among the ranks that share one replica. channel: the channel between all ranks, which is there
    once they have met.
    """

    channel: Channel

    def __init__(
        self,
        settings: ParallelSettings,
        mesh: Mesh,
        store: Store | None = None,
        on_loaded: OnLoaded = ignore,
        on_met: Callable[[], None] = lambda: None,
    ):
        """store: where the ranks meet; None is the store that the rank's environment names. on_loaded: called when the
        weights are loaded. on_met: called when all ranks have met. Raises ValueError and RankLost.
        """
        self.mesh = mesh
        self.on_loaded = on_loaded
        self._on_met = on_met
        self._model: CausalModel | None = None
        self._settings, self._store = settings, store
        self.replica = connect_axis(settings, mesh, "pp" if mesh.degree("pp") > 1 else "tp", store)

    @property
    def reader(self) -> Reader | None:
        if self.mesh.degree("pp") > 1:
            return read_stage(self.replica.rank, self.replica.num_ranks)
        return read_sharded(self.replica) if self.mesh.degree("tp") > 1 else None

    @property
    def capture(self) -> Capture | None:
        return capture_together(self.replica) if self.replica.num_ranks > 1 else None

    @property
    def group(self) -> RankGroup | None:
        return self.replica if self.replica.num_ranks > 1 else None

    @property
    def fingerprints(self) -> bool:
        return self._settings.debug

    @property
    def mode(self) -> Any:
        return describe_mode(self._settings, self.mesh)

    @property
    def has_met(self) -> bool:
        return hasattr(self, "channel")

    @property
    def num_sharing(self) -> int:
        return self.mesh.num_sharing

    @property
    def is_alone(self) -> bool:
        return self.mesh.num_ranks == 1

    @property
    def holds_all(self) -> bool:
        is_dp = Mode(self._settings.mode) is Mode.dp
        return self.mesh.is_replicated and (self.is_alone or not is_dp)

    @property
    def is_leader(self) -> bool:
        return self.channel.is_leader

    def broadcast(self, value: Any) -> Any:
        return self.channel.broadcast(value)

    def least(self, value: int, /) -> int:
        return self.channel.least(value)

    def runner(self, model: CausalModel, prefill_chunk: int | None, has_draft: bool) -> Runner:
        self.channel = Channel(connect(self._settings, self.mesh, self._store))
        self._on_met()
        if self.mesh.degree("pp") > 1:
            return PipelineParallel(model, self.replica, self.channel, prefill_chunk)
        self._model = model
        if self.mesh.degree("tp") > 1:
            alone: SingleDevice = TensorParallel(model, self.replica, prefill_chunk)
        else:
            alone = SingleDevice(model, prefill_chunk)
        return share_steps(alone, self.channel, self._settings.mode, self.replica.num_ranks, has_draft)

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent in its steps, to all ranks, to single ones and within its replica. Commands are not
        counted.
        """
        messages = self.channel.messages
        return self.channel.traffic + self.replica.traffic + (messages.traffic if messages else Traffic())

    def close(self) -> None:
        """Closes the connections to the other ranks."""
        if self.has_met:
            self.channel.close()
        if self.mesh.degree("tp") > 1 and self._model is not None and self._model.fast is not None:
            self._model.fast = None  # NCCL does not end while there are graphs that use it
            gc.collect()
        self.replica.close()


class EpochTopology(SingleProcess):
    """A rank that holds a whole model. It decodes alone until it joins an epoch (see parallel/groups)."""

    def __init__(self, settings: ParallelSettings, on_loaded: OnLoaded = ignore, num_sharing: int = 1):
        """on_loaded: called when the weights are loaded. num_sharing: see `Topology`."""
        self.on_loaded = on_loaded
        self.num_sharing = num_sharing
        self.fingerprints = settings.debug
