"""Measures on one machine what benchmarks/projections/arithmetic.py has computed of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.utils.flop_counter import FlopCounterMode

from benchmarks.projections.arithmetic import Cost
from benchmarks.projections.network import LoneRank
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.fast.choose import CompileMode
from lp.model.kernels import AttentionKind
from lp.tree import TokenTree, chain
from parallel.comm.channel import HEADER
from parallel.comm.traffic import Traffic
from parallel.runners.partition import partition
from parallel.shards.stages import read_stage
from parallel.shards.tensor import read_sharded
from parallel.shards.weights import num_weight_bytes

PREFILL_CHUNK = 512


@dataclass(frozen=True)
class Check:
    """One figure of a mode."""

    mode: str
    what: str
    computed: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.measured / self.computed if self.computed else 1.0


def check(path: str, dtype: str, degrees: Mapping[str, int], cost: Cost, tree: TokenTree, context: int) -> list[Check]:
    """What can be measured of a mode, on the CPU, with one rank at a time; all ranks of lp and tp hold as much.

    path: a folder with weights. A pipeline's stages do not run by themselves: only their weights are measured.
    """
    settings = ModelSettings(path, dtype, "cpu", compile=CompileMode.off)  # compiled operations are not counted
    if (pp := degrees.get("pp", 1)) > 1:
        stages = [load(settings, reader=read_stage(stage, pp)).model.model for stage in range(pp)]
        return [Check(cost.mode, "weights, bytes", cost.weight_bytes, max(map(num_weight_bytes, stages)))]
    collectives = LoneRank(degrees.get("tp", 1))
    reader = read_sharded(collectives) if collectives.num_ranks > 1 else None
    model = load(settings, AttentionKind.eager, reader).model
    model.model.set_experts_implementation("eager")  # plain products, as in attention: torch does not count all others
    part = tree.take(max(partition(tree, degrees.get("lp", 1)), key=len))
    cache_bytes, flops, traffic = run_step(model, part, context, collectives)
    exchanged = 4 * (HEADER + len(part)) if cost.ranks > 1 else 0
    checks = [
        Check(cost.mode, "weights, bytes", cost.weight_bytes, num_weight_bytes(model.model)),
        Check(cost.mode, "KV cache, bytes", cost.cache_bytes, cache_bytes),
        Check(cost.mode, "FLOP", cost.flops, flops),
        Check(cost.mode, "collectives in the replica", cost.collectives - (cost.ranks > 1), traffic.num_collectives),
        Check(cost.mode, "sent in the replica, bytes", cost.bytes_sent - exchanged, traffic.bytes_sent),
    ]
    return [one for one in checks if one.computed or one.measured]


def run_step(model: CausalModel, part: TokenTree, context: int, collectives: LoneRank) -> tuple[int, int, Traffic]:
    """Cache bytes for the context, operations of the step, and what it sent."""
    cache = model.make_cache(context + len(part))
    while rows := min(context - cache.length, PREFILL_CHUNK):
        model.forward(chain([0] * rows), cache, num_logits=1)
        cache.keep(range(rows))
    before = replace(collectives.traffic)
    with FlopCounterMode(display=False) as counter:
        model.forward(part, cache, num_logits=len(part))
    return cache.num_bytes * context // cache.capacity, counter.get_total_flops(), collectives.traffic - before
