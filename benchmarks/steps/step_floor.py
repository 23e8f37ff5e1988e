"""The least time that a step can take on a machine.

A step must read every weight and every cached key and value once, and do every operation; of a mixture's experts it
reads at least those of one row. Its floor is the longer of
the two at the machine's own rates (benchmarks/steps/machine_rates.py). Where weights fit the processor's caches, a step
may be faster than this floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from benchmarks.projections.rank_cost import RankShare, share_of
from benchmarks.steps.machine_rates import MachineRates


@dataclass(frozen=True)
class StepFloor:
    """The floor of one model on one machine. itemsize: bytes of a weight and of an element of the cache. weight_bytes:
    of all matrices that rows are multiplied with, if they are quantised.
    """

    share: RankShare
    itemsize: int
    rates: MachineRates
    weight_bytes: int | None = None

    def num_bytes(self, num_rows: int, cached: int) -> int:
        """Bytes that a step has to read: the matrices that rows are multiplied with, keys and values."""
        weights = self.share.multiplied * self.itemsize if self.weight_bytes is None else self.weight_bytes
        return weights + self.share.cache_bytes(cached + num_rows, self.itemsize)

    def seconds(self, num_rows: int, cached: int) -> float:
        moving = self.num_bytes(num_rows, cached) / self.rates.bytes_per_s
        return max(moving, self.share.flops(num_rows, cached) / self.rates.flops_per_s)


def floor_of(config: PreTrainedConfig, dtype: torch.dtype, readings: Sequence[MachineRates]) -> StepFloor:
    """The floor of a whole model, at the highest of the rates that were read."""
    rates = MachineRates(max(one.bytes_per_s for one in readings), max(one.flops_per_s for one in readings))
    return StepFloor(share_of(config, dtype), dtype.itemsize, rates)
