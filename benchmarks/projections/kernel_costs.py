"""An estimate of a step's time on a GPU from what it launches, reads and computes, by figures of one H200.

Kernels of a captured graph follow one another. A kernel takes as long as its bytes or its operations, whichever takes
longer, and never less than LEAST_US; one of attention takes ATTENTION_US and the time of its bytes. So the estimate is
a sum over kernels, and small kernels cost what they cost to start: that is what fusing saves.

    R rows
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2, prod

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from benchmarks.projections.gpus import SHARE_OF_BANDWIDTH, SHARE_OF_FLOPS, Gpu
from benchmarks.shared.random_weights import quantize_model
from lp.model.causal import CausalModel
from lp.model.gpu.attention import LARGEST_MEMORY, choose_tile, num_merged, num_splits
from lp.model.gpu.make import make_program
from lp.model.gpu.plan import (
    Instruction,
    RunAttention,
    RunLookup,
    RunPackedProduct,
    RunProduct,
    RunStage,
    make_plan,
)
from lp.model.gpu.sinks import Store, power_of_two
from lp.model.kernels import AttentionKind
from lp.model.program.schedule import schedule
from lp.model.program.steps import Value
from lp.model.quantization.packed import PackedWeight
from lp.model.quantization.quantize import Weights

# From the start of a small kernel in a graph to the start of the next one that waits for it: what an H200's step of
# Llama 3.1 8B leaves for each of its 129 fused stages (benchmarks/results/gpu-speed.md).
LEAST_US = 2.0
# The time of an attention kernel without that of its bytes, most of which is waiting for its first pages: as measured
# on an H200 with one row (docs/log/kernels.md).
ATTENTION_US = 11.0
# Products of up to so many rows read weights at one share of the data sheet's bandwidth, and those of so many at
# another one, as measured on an H200 (benchmarks/results/gpu-speed-before.md).
FEW_ROWS, SHARE_AT_FEW_ROWS, MANY_ROWS, SHARE_AT_MANY_ROWS = 64, 0.77, 128, 0.70
# Numbers of a quantised weight that products decode in a microsecond, with up to so many rows: those of Llama 3.1 8B in
# int4, as measured on an H100 (benchmarks/results/gpu-speed-h100.md). Instructions take longer than bytes, so another
# GPU's memory would hardly change them.
DECODED = {16: 2.3e6, 32: 1.6e6, 64: 1.3e6, 128: 0.86e6}
ITEMSIZE = torch.bfloat16.itemsize
# Kinds of kernels.
PRODUCTS, PACKED, ATTENTION = "products", "products of packed weights", "attention"


@dataclass(frozen=True)
class Cost:
    """Kernels of one kind in a step, the bytes that they move to and from memory, and their operations."""

    kind: str
    launches: int
    num_bytes: float
    num_operations: float

    def microseconds(self, gpu: Gpu, num_rows: int) -> float:
        """Estimated; all kernels of the kind are taken to be alike."""
        share = share_of_bandwidth(num_rows) if self.kind == PRODUCTS else SHARE_OF_BANDWIDTH
        moving = self.num_bytes / (share * gpu.memory_gb_per_s * 1e3)
        computing = self.num_operations / (SHARE_OF_FLOPS * gpu.tflops * 1e6)
        if self.kind == ATTENTION:
            return self.launches * ATTENTION_US + max(moving, computing)
        if self.kind == PACKED:
            rate = next((one for most, one in DECODED.items() if num_rows <= most), DECODED[128])
            moving = max(moving, self.num_operations / (2 * num_rows * rate))
        return max(moving, computing, self.launches * LEAST_US)


def share_of_bandwidth(num_rows: int) -> float:
    """What products of so many rows get of the bandwidth: fewer programs read large tiles, whose sums they keep."""
    steps = log2(max(num_rows, FEW_ROWS) / FEW_ROWS) / log2(MANY_ROWS / FEW_ROWS)
    return SHARE_AT_FEW_ROWS + min(1.0, steps) * (SHARE_AT_MANY_ROWS - SHARE_AT_FEW_ROWS)


def plan_of(config: PreTrainedConfig, weights: Weights = Weights.auto) -> list[Instruction]:
    """The fused forward's kernels for a model in bfloat16 that needs no memory: only its shapes matter."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if weights is not Weights.auto:
        quantize_model(model, weights)
    program = make_program(CausalModel(model, 4096, [], AttentionKind.eager))
    return make_plan(program, schedule(program), torch.bfloat16)


def costs_of(plan: Iterable[Instruction], num_rows: int, num_cached: int) -> list[Cost]:
    """What a step of R rows after so many cached tokens takes, by kind of kernel."""
    stages = "fused stages and lookups"
    found: dict[str, list[tuple[int, float, float]]] = {PRODUCTS: [], PACKED: [], ATTENTION: [], stages: []}
    for one in plan:
        match one:
            case RunProduct():
                found[PRODUCTS].append(_product(one.weight, num_rows, one.weight.numel() * ITEMSIZE))
            case RunPackedProduct():
                found[PACKED].append(_product(one.weight, num_rows, one.weight.num_bytes))
            case RunLookup():
                moved = num_rows * (one.table.num_bytes / one.table.num_outputs + one.table.num_inputs * ITEMSIZE)
                found[stages].append((1, moved, 0.0))
            case RunAttention():
                found[ATTENTION].append(_attention(one, num_rows, num_cached))
            case RunStage():
                found[stages].append(_stage(one, num_rows))
    return [
        Cost(kind, *(sum(figures) for figures in zip(*costs, strict=True))) for kind, costs in found.items() if costs
    ]


def unfused(costs: Iterable[Cost], launches: int) -> list[Cost]:
    """The same products, and as many small kernels and kernels of attention as a forward without fusing launches.

    launches: of a step. Small kernels are taken to move no more bytes than the fused ones, which favours them.
    """
    all_costs = [*costs]
    products = [one for one in all_costs if one.kind in (PRODUCTS, PACKED)]
    small = launches - sum(one.launches for one in products)
    moved = sum(one.num_bytes for one in all_costs if one not in products)
    return [*products, Cost("all others", small, moved, 0.0)]


def _product(weight: Tensor | PackedWeight, num_rows: int, num_bytes: int) -> tuple[int, float, float]:
    """num_bytes: of the weight."""
    num_inputs, num_outputs = weight.shape
    moved = num_bytes + num_rows * (num_inputs + num_outputs) * ITEMSIZE
    return 1, moved, 2.0 * num_rows * num_inputs * num_outputs


def _attention(one: RunAttention, num_rows: int, num_cached: int) -> tuple[int, float, float]:
    step = one.step
    heads, window = step.num_heads * step.num_groups, step.how.sliding_window
    keys = min(num_cached, window or num_cached) + num_rows
    width = max(power_of_two(step.head_dim), 16)
    tile = choose_tile(num_rows, step.num_groups, width, ITEMSIZE, LARGEST_MEMORY)
    splits, num_tiles = num_splits(num_rows, tile.rows, step), -(-num_rows // tile.rows)
    # Each tile of rows reads the keys and values for itself; that the cache holds some of them is left out.
    sizes = step.head_dim + step.value_dim
    moved = num_tiles * keys * step.num_heads * sizes * ITEMSIZE
    moved += num_rows * heads * sizes * ITEMSIZE
    moved += 2 * splits * num_rows * heads * step.value_dim * 4 if splits > 1 else 0
    num_queries = min(num_rows, tile.rows) * step.num_groups
    is_merged = num_merged(num_queries, splits, width, tile.warps) > 0
    return 1 + (splits > 1 and not is_merged), moved, 2.0 * num_rows * heads * sizes * keys


def _stage(one: RunStage, num_rows: int) -> tuple[int, float, float]:
    moved = 0
    for argument in one.arguments:
        if isinstance(argument, Value):
            moved += num_rows * argument.width * (8 if argument.is_integer else 2 if argument.is_half else 4)
        elif isinstance(argument, Tensor):
            moved += min(prod(argument.shape), num_rows * argument.shape[-1]) * argument.element_size()
        elif isinstance(argument, Store):
            moved += 0  # a row's keys and values are counted where they are read
    return 1, moved, 0.0
