"""The modelled time of a step, where one rank computes its tree and where several share it."""

from __future__ import annotations

import pytest

from lp.calibration.measure import bushy_tree
from lp.step_cost import StepCost, StepTimes
from lp.tree import TokenTree, chain
from parallel.runners.partition import partition

TIMES = (1, 4, 16, 64), (0.010, 0.011, 0.015, 0.031)


def largest_part(tree: TokenTree, num_parts: int) -> int:
    return max(map(len, partition(tree, num_parts)))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 40, 64])
def test_alone_a_tree_is_its_only_part(num_rows: int) -> None:
    cost = StepCost(StepTimes(*TIMES), 64)
    assert {cost.largest_part(num_rows, depth) for depth in range(num_rows)} == {num_rows}
    assert cost.seconds[num_rows] == StepTimes(*TIMES).at(num_rows)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_a_chain_costs_each_rank_all_of_its_rows(num_parts: int) -> None:
    cost = StepCost(StepTimes(*TIMES, num_parts), 64)
    for length in (1, 2, 9, 30):
        assert cost.largest_part(length, length - 1) == largest_part(chain([0] * length), num_parts) == length


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [16, 32, 64])
def test_a_bushy_tree_is_shared(num_rows: int, num_parts: int) -> None:
    cost = StepCost(StepTimes(*TIMES, num_parts), 64)
    tree = bushy_tree(0, num_rows, 100)
    modelled = cost.largest_part(num_rows, int(tree.depths.max()))
    assert modelled == pytest.approx(largest_part(tree, num_parts), abs=3)
    assert cost.seconds[largest_part(tree, num_parts)] == pytest.approx(StepTimes(*TIMES).at(num_rows), rel=0.1)
