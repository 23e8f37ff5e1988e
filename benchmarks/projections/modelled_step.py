"""The time of a step on GPUs, from a model's shape and published figures of the GPUs. Nothing here is measured.

A step reads the weights and the cache once, or computes as fast as the device can, whichever takes longer. To that come
an overhead for each layer, the collectives of tensor parallelism, the one exchange of lookahead parallelism, and the
host's own work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from benchmarks.projections.gpus import LAYER_OVERHEAD_US, SHARE_OF_BANDWIDTH, SHARE_OF_FLOPS, Gpu
from benchmarks.projections.rank_cost import RankShare, share_of
from benchmarks.projections.shared_trees import SharedTrees

ITEMSIZE = torch.bfloat16.itemsize


@dataclass(frozen=True)
class Setting:
    """What a speed is projected for. context: cached tokens. exchange_us: of lookahead parallelism, once a step."""

    gpu: Gpu
    context: int
    exchange_us: float


@dataclass(frozen=True)
class Choice:
    """The fastest number of rows on lp x tp devices. rows: of the whole tree. largest: of the largest part."""

    lp: int
    tp: int
    rows: int
    largest: float
    tokens_per_step: float
    step_ms: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens_per_step / self.step_ms


def step_seconds(share: RankShare, tp: int, rows: float, setting: Setting) -> float:
    """A forward pass of `rows` rows on one replica of `tp` devices. share: what each of them holds."""
    gpu = setting.gpu
    read = share.multiplied * ITEMSIZE + share.cache_bytes(setting.context, ITEMSIZE)
    reading = read / (SHARE_OF_BANDWIDTH * gpu.memory_gb_per_s * 1e9)
    computing = share.flops(round(rows), setting.context) / (SHARE_OF_FLOPS * gpu.tflops * 1e12)
    seconds = max(reading, computing) + LAYER_OVERHEAD_US * 1e-6 * len(share.windows)
    if tp > 1:
        moved = 2 * (tp - 1) / tp * share.sent * ITEMSIZE * rows
        seconds += share.collectives * gpu.all_reduce_us[tp] * 1e-6 + moved / (gpu.link_gb_per_s * 1e9)
    return seconds


def shares_of(config: PreTrainedConfig, degrees: Sequence[int]) -> dict[int, RankShare]:
    """What a rank of each degree of tensor parallelism holds."""
    return {degree: share_of(config, torch.bfloat16, degree) for degree in degrees}


def fastest(
    shares: Mapping[int, RankShare], trees: Mapping[int, SharedTrees], lp: int, tp: int, setting: Setting
) -> Choice:
    """The number of rows with the most tokens per second. trees: recorded ones, by their rows."""
    choices = []
    for rows, total in trees.items():
        largest = total.largest[lp] / total.steps
        seconds = step_seconds(shares[tp], tp, largest, setting) + total.host_s / total.steps
        seconds += setting.exchange_us * 1e-6 * (lp > 1)
        choices.append(Choice(lp, tp, rows, largest, total.tokens / total.steps, 1e3 * seconds))
    return max(choices, key=lambda choice: choice.tokens_per_s)
