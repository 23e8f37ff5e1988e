"""Curves that follow from others, by arithmetic that was done by hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.projections.gpus import GPUS
from benchmarks.projections.modelled_step import Setting, shares_of, step_seconds
from benchmarks.projections.network import Network
from benchmarks.projections.rank_cost import share_of
from benchmarks.projections.streams.curves import modelled_times, shared_times, tensor_times, with_exchange
from benchmarks.shared.shapes import SHAPES, make_config
from lp.step_cost import CACHED, Extras, StepTimes

# 1 s and 10 ms for each row.
ONE = StepTimes((1, 128), (1.01, 2.28), extras=Extras(sequence=0.5, thousand_cached=0.25))


def test_shared_steps_take_as_long_as_their_largest_part() -> None:
    shared = shared_times(ONE, 8, exchange_s=0.125)
    assert (shared.num_parts, shared.extras) == (8, ONE.extras)
    part = shared.by_part()
    # 9 rows of a part, 3 accepted ones of other ranks, the exchange.
    assert part.at(9) == pytest.approx(1 + 0.09 + 0.03 + 0.125)
    assert part.at(100) == pytest.approx(1 + 1.0 + 0.03 + 0.125)
    # 1 + 2 * 8 chains of 4 rows: two chains for each of 8 parts.
    assert shared.at(65) == pytest.approx(part.at(9))
    assert shared.alone is not None and shared.alone.at(65) == pytest.approx(1.65 + 0.125)
    assert shared_times(ONE, 1, 0.125) is ONE
    assert with_exchange(ONE, 0.125).at(11) == pytest.approx(1.11 + 0.125)


def test_a_tensor_parallel_group_pays_for_its_collectives() -> None:
    config, network = make_config(SHAPES["llama-130m"]), Network(latency_us=100, gb_per_s=2)
    whole, half = share_of(config, torch.bfloat16), share_of(config, torch.bfloat16, 2)
    found = tensor_times(ONE, config, torch.bfloat16, 2, network)
    assert half.multiplied * 2 == whole.multiplied and half.collectives == 2 * 12 + 2
    sent = half.sent * 2 * 128  # bytes of an all-reduce with two ranks: 2 n (2 - 1) / 2
    assert found.at(128) == pytest.approx(2.28 / 2 + half.collectives * 100e-6 + sent / 2e9)
    assert found.extras.thousand_cached == 0.125 and found.extras.sequence == 0.5
    assert tensor_times(ONE, config, torch.bfloat16, 1, network) is ONE


@pytest.mark.parametrize("tp", [1, 8])
def test_a_modelled_curve_is_that_of_the_modelled_step(tp: int) -> None:
    config = make_config(SHAPES["llama-3.1-8b"])
    found = modelled_times(GPUS[1], config, tp, Extras(host_step=1e-5, host_row=1e-6))
    share = shares_of(config, [tp])[tp]
    for rows in (1, 64, 1024):
        assert found.at(rows) == step_seconds(share, tp, rows, Setting(GPUS[1], CACHED, 0.0))
    # Keys and values of 8 heads, 128 numbers, 32 layers and 2 bytes each, at 83% of 3,352 GB/s.
    assert found.extras.thousand_cached == pytest.approx(1000 * 2 * 8 * 128 * 32 * 2 / tp / (0.83 * 3352e9))
    assert (found.extras.host_step, found.extras.host_row) == (1e-5, 1e-6)
