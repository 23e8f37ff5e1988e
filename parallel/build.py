"""What a mode of parallelism means for one rank: which weights it reads, and the runner that it decodes with.

`MeshPlace` is the place of a rank in a run whose ranks all take part from beginning to end, as under torchrun;
`EpochPlace` that of a rank which holds a whole model and joins one epoch after another. See `Engine.assemble`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed import Store
from transformers import PreTrainedConfig

from lp.assembly import Alone
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint, Reader
from lp.runner import Runner
from lp.single_device import SingleDevice
from parallel.comm.channel import Channel
from parallel.comm.connect import connect, connect_axis
from parallel.comm.traffic import Traffic
from parallel.mesh import Mesh, ParallelSettings
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.shards.stages import check_stages, read_stage
from parallel.shards.tensor import check_degree, read_sharded


def check(config: PreTrainedConfig, degrees: Mapping[str, int]) -> None:
    """Raises ValueError, or UnsupportedArchitecture, if such a model cannot be split like that. degrees: by axis."""
    if (tp := degrees.get("tp", 1)) > 1:
        check_degree(config, tp)
    if (pp := degrees.get("pp", 1)) > 1:
        check_stages(config, pp)


def share_steps(alone: SingleDevice, channel: Channel, ranks_per_replica: int = 1) -> Runner:
    """The runner of replicas that share the work of every step; of a single rank, its own."""
    return alone if channel.num_ranks == 1 else LookaheadParallel(alone, channel, ranks_per_replica)


def describe_mode(settings: ParallelSettings, mesh: Mesh) -> list[Any]:
    """JSON values that tell apart ways of running a model whose steps take different times."""
    return [dict(mesh.axes), mesh.num_local_ranks, str(settings.exchange), settings.delay_us]


OnLoaded = Callable[[Checkpoint], None]


def ignore(checkpoint: Checkpoint) -> None:
    """An OnLoaded that does nothing."""


class MeshPlace:
    """See `Place`. The ranks that share a replica of the model meet when this is made, all others in `runner`.

    replica: collectives among the ranks that hold one replica. channel: between all ranks, once they have met.
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
        """store: where the ranks meet; None is what the rank environment says. on_loaded: called when the weights are
        there. on_met: called when all ranks have met. Raises ValueError and RankLost.
        """
        self.mesh = mesh
        self.on_loaded = on_loaded
        self._on_met = on_met
        self._settings, self._store = settings, store
        self.replica = connect_axis(settings, mesh, "pp" if mesh.degree("pp") > 1 else "tp", store)

    @property
    def reader(self) -> Reader | None:
        if self.mesh.degree("pp") > 1:
            return read_stage(self.replica.rank, self.replica.num_ranks)
        return read_sharded(self.replica) if self.mesh.degree("tp") > 1 else None

    @property
    def fingerprints(self) -> bool:
        return self._settings.debug

    @property
    def mode(self) -> Any:
        return describe_mode(self._settings, self.mesh)

    @property
    def has_met(self) -> bool:
        return hasattr(self, "channel")

    def tell(self, value: Any) -> Any:
        return self.channel.tell(value)

    def runner(self, model: CausalModel, prefill_chunk: int) -> Runner:
        self.channel = Channel(connect(self._settings, self.mesh, self._store))
        self._on_met()
        if self.mesh.degree("pp") > 1:
            return PipelineParallel(model, self.replica, self.channel, prefill_chunk)
        return share_steps(SingleDevice(model, prefill_chunk), self.channel, self.replica.num_ranks)

    @property
    def traffic(self) -> Traffic:
        """What this rank's steps have sent: answers, and what the ranks of its replica tell each other. Commands are
        not counted.
        """
        return self.channel.traffic + self.replica.traffic

    def close(self) -> None:
        """Leaves the other ranks."""
        if self.has_met:
            self.channel.close()
        self.replica.close()


class EpochPlace(Alone):
    """See `Place`: a rank that holds a whole model. It decodes alone until it joins an epoch (see parallel/group)."""

    def __init__(self, settings: ParallelSettings, on_loaded: OnLoaded = ignore):
        """on_loaded: as for MeshPlace."""
        self.on_loaded = on_loaded
        self.fingerprints = settings.debug
