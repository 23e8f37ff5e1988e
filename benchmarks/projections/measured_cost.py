"""Measures on one machine what benchmarks/projections/rank_cost.py computes for a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.utils.flop_counter import FlopCounterMode

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.rank_cost import RankCost
from benchmarks.shared.filled_cache import fill_cache
from lp.kv_cache.cache import PAGE
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.kernels import AttentionKind
from lp.model.memory import num_weight_bytes
from lp.tree import TokenTree
from parallel.comm.base import Traffic
from parallel.comm.rows import HEADER
from parallel.runners.partition import partition
from parallel.sharding.stages import read_stage
from parallel.sharding.tensor import read_sharded

# Ends the name of a module that computes angles of positions, by products in some versions of transformers.
ANGLES = "rotary_emb"


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
    """Measures what the CPU can show of a mode with one rank at a time, and gives the highest figures of any rank.

    path: a folder with weights. The stages of a pipeline do not run alone, so only their weights are measured.
    """
    settings = ModelSettings(path, dtype, "cpu", compile=CompileMode.off)  # compiled operations are not counted
    if (pp := degrees.get("pp", 1)) > 1:
        stages = [load(settings, reader=read_stage(stage, pp)).model.model for stage in range(pp)]
        return [CostCheck(cost.mode, "weights, bytes", cost.weight_bytes, max(map(num_weight_bytes, stages)))]
    part = tree.take(max(partition(tree, degrees.get("lp", 1)), key=len))
    tp = degrees.get("tp", 1)
    measured = [measure_rank(settings, LoneRank(tp, rank), part, context) for rank in range(tp)]
    exchanged = 4 * (HEADER + len(part)) if cost.ranks > 1 else 0
    computed = {
        "weights, bytes": cost.weight_bytes,
        "KV cache, bytes": cost.cache_bytes,
        "FLOP": cost.flops,
        "collectives in the replica": cost.collectives - (cost.ranks > 1),
        "sent in the replica, bytes": cost.bytes_sent - exchanged,
    }
    checks = [
        CostCheck(cost.mode, what, figure, max(found))
        for (what, figure), found in zip(computed.items(), zip(*measured, strict=True), strict=True)
    ]
    return [one for one in checks if one.computed or one.measured]


def measure_rank(
    settings: ModelSettings, collectives: LoneRank, part: TokenTree, context: int
) -> tuple[int, int, int, int, int]:
    """Bytes of a rank's weights and of its cache, its operations, and its collectives and bytes sent in a replica."""
    reader = read_sharded(collectives) if collectives.num_ranks > 1 else None
    model = load(settings, AttentionKind.eager, reader).model
    model.model.set_experts_implementation("eager")  # torch counts plain products only
    cache_bytes, flops, traffic = run_step(model, part, context, collectives)
    return num_weight_bytes(model.model), cache_bytes, flops, traffic.num_collectives, traffic.bytes_sent


def run_step(model: CausalModel, part: TokenTree, context: int, collectives: LoneRank) -> tuple[int, int, Traffic]:
    """Bytes of the cache for the context, operations of the step, and what the step sent."""
    cache = fill_cache(model, context, len(part))
    before = replace(collectives.traffic)
    with FlopCounterMode(display=False) as counter:
        model.forward(part, cache, num_logits=len(part))
    counts = {name: sum(by_operation.values()) for name, by_operation in counter.get_flop_counts().items()}
    of_angles = sum(count for name, count in counts.items() if name.endswith(ANGLES))
    return (
        cache.num_bytes * context // (cache.num_pages * PAGE),
        counter.get_total_flops() - of_angles,
        collectives.traffic - before,
    )
