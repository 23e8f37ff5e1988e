"""The floor of a step, and the machine's rates that it is computed from."""

from __future__ import annotations

import torch

from benchmarks.projections.rank_cost import RankShare
from benchmarks.steps.machine_rates import MachineRates, RateGauge
from benchmarks.steps.step_floor import StepFloor


def test_the_floor_is_the_longer_of_moving_and_computing() -> None:
    share = RankShare(
        weight_bytes=0,
        multiplied=1000,
        windows=[None, 51],
        query_heads=4,
        kv_heads=1,
        head_dim=8,
        collectives=0,
        sent=0,
    )
    moving = StepFloor(share, itemsize=2, rates=MachineRates(bytes_per_s=1.0, flops_per_s=1e9))
    assert moving.num_bytes(5, cached=95) == 2 * 1000 + 2 * 2 * 100 * 2 * 8
    assert moving.seconds(5, cached=95) == moving.num_bytes(5, cached=95)
    computing = StepFloor(share, itemsize=2, rates=MachineRates(bytes_per_s=1e9, flops_per_s=1.0))
    assert computing.seconds(5, cached=95) == 2 * 5 * 1000 + 4 * 5 * (100 + 55) * 4 * 8


def test_the_machines_rates_are_those_of_its_readings() -> None:
    gauge = RateGauge(torch.device("cpu"), torch.float32, num_bytes=1 << 24)
    assert 1e8 < gauge.read_bytes_per_s() < 1e13
    assert 1e8 < gauge.read_flops_per_s() < 1e14
