"""What each mode of parallelism is made of: how a rank reads its weights, and the runner that it decodes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch.distributed import Store
from transformers import PreTrainedConfig

from lp.model.causal import CausalModel
from lp.model.checkpoint import Reader
from lp.runner import Runner, SingleDevice
from parallel.comm.channel import Channel
from parallel.comm.collectives import Collectives
from parallel.comm.connect import connect_axis
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


@dataclass
class Parallelism:
    """One rank's part in the mesh. replica: collectives among the ranks that hold one replica of the model."""

    mesh: Mesh
    replica: Collectives

    @staticmethod
    def join(settings: ParallelSettings, mesh: Mesh, store: Store | None = None) -> Parallelism:
        """Every rank calls this at about the same time. store: see `connect`. Raises ValueError and RankLost."""
        axis = "pp" if mesh.degree("pp") > 1 else "tp"
        return Parallelism(mesh, connect_axis(settings, mesh, axis, store))

    @property
    def reader(self) -> Reader | None:
        """Reads what this rank holds of the weights; None is all of them."""
        if self.mesh.degree("pp") > 1:
            return read_stage(self.replica.rank, self.replica.num_ranks)
        return read_sharded(self.replica) if self.mesh.degree("tp") > 1 else None

    def runner(self, model: CausalModel, channel: Channel, prefill_chunk: int) -> Runner:
        """channel: between all ranks."""
        if self.mesh.degree("pp") > 1:
            return PipelineParallel(model, self.replica, channel, prefill_chunk)
        alone = SingleDevice(model, prefill_chunk)
        return alone if self.mesh.num_ranks == 1 else LookaheadParallel(alone, channel, self.replica.num_ranks)

    def close(self) -> None:
        self.replica.close()
