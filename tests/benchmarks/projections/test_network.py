"""Collectives cost a latency and the time of their bytes, and a lone rank counts what it would send."""

from __future__ import annotations

import pytest
import torch

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import Charges, Network, all_gather


def test_collectives_cost_latency_and_bytes() -> None:
    assert Network(latency_us=100, gb_per_s=2).seconds(Charges(3, 4e6)) == pytest.approx(3e-4 + 2e-3)
    assert all_gather(1000, 4) == Charges(1, 3000)
    assert all_gather(1000, 1) == Charges()


def test_a_lone_rank_counts_what_it_would_send() -> None:
    rank = LoneRank(4)
    tensor = torch.ones(2, 3)
    assert torch.equal(rank.all_reduce(tensor), tensor)
    assert rank.all_gather(tensor).shape == (4, 2, 3)
    assert (rank.traffic.num_collectives, rank.traffic.bytes_sent) == (2, 48)
