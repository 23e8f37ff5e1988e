"""Measures on one machine what benchmarks/projections/rank_cost.py computes for a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.utils.flop_counter import FlopCounterMode

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.rank_cost import RankCost
from benchmarks.shared.filled_cache import fill_cache
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.fast.choose import CompileMode
from lp.model.kernels import AttentionKind
from lp.tree import TokenTree
from parallel.comm.channel import HEADER
from parallel.comm.traffic import Traffic
from parallel.runners.partition import partition
from parallel.shards.stages import read_stage
from parallel.shards.tensor import read_sharded
from parallel.shards.weights import num_weight_bytes


@dataclass(frozen=True)
class CostCheck:
    """One figure of a mode, computed and measured."""

    mode: str
    what: str
    computed: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.measured / self.computed if self.computed else 1.0


def check_cost(
    path: str, dtype: str, degrees: Mapping[str, int], cost: RankCost, tree: TokenTree, context: int
) -> list[CostCheck]:
    """Measures what the CPU can show of a mode with one rank at a time; all ranks of lp and tp hold the same amount.

    path: a folder with weights. The stages of a pipeline do not run alone, so only their weights are measured.
    """
    settings = ModelSettings(path, dtype, "cpu", compile=CompileMode.off)  # compiled operations are not counted
    if (pp := degrees.get("pp", 1)) > 1:
        stages = [load(settings, reader=read_stage(stage, pp)).model.model for stage in range(pp)]
        return [CostCheck(cost.mode, "weights, bytes", cost.weight_bytes, max(map(num_weight_bytes, stages)))]
    collectives = LoneRank(degrees.get("tp", 1))
    reader = read_sharded(collectives) if collectives.num_ranks > 1 else None
    model = load(settings, AttentionKind.eager, reader).model
    model.model.set_experts_implementation("eager")  # torch counts plain products only
    part = tree.take(max(partition(tree, degrees.get("lp", 1)), key=len))
    cache_bytes, flops, traffic = run_step(model, part, context, collectives)
    exchanged = 4 * (HEADER + len(part)) if cost.ranks > 1 else 0
    checks = [
        CostCheck(cost.mode, "weights, bytes", cost.weight_bytes, num_weight_bytes(model.model)),
        CostCheck(cost.mode, "KV cache, bytes", cost.cache_bytes, cache_bytes),
        CostCheck(cost.mode, "FLOP", cost.flops, flops),
        CostCheck(
            cost.mode, "collectives in the replica", cost.collectives - (cost.ranks > 1), traffic.num_collectives
        ),
        CostCheck(cost.mode, "sent in the replica, bytes", cost.bytes_sent - exchanged, traffic.bytes_sent),
    ]
    return [one for one in checks if one.computed or one.measured]


def run_step(model: CausalModel, part: TokenTree, context: int, collectives: LoneRank) -> tuple[int, int, Traffic]:
    """Bytes of the cache for the context, operations of the step, and what the step sent."""
    cache = fill_cache(model, context, len(part))
    before = replace(collectives.traffic)
    with FlopCounterMode(display=False) as counter:
        model.forward(part, cache, num_logits=len(part))
    return cache.num_bytes * context // cache.capacity, counter.get_total_flops(), collectives.traffic - before
