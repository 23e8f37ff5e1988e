"""How a tree of a second model's drafts grows, and what its drafts turn out to be worth."""

from __future__ import annotations

import pytest

from lp.decoding.by_model.calibration import MOST_TRIALS, Calibration
from lp.decoding.by_model.growth import Candidates, Growth


def grown(priors: list[float], round_cost: float = 0.0, max_depth: int = 4, most_drafts: int = 6) -> Growth:
    """Every node gets the same candidates."""
    growth = Growth(1, Calibration(), max_depth, most_drafts, round_cost, is_chain=False)
    while nodes := growth.choose():
        growth.num_rounds += 1
        for number in nodes:
            growth.add(number, Candidates(list(range(len(priors))), priors))
    return growth


def test_the_likeliest_paths_come_first_and_parents_before_children() -> None:
    growth = grown([0.6, 0.3, 0.05])
    best = growth.best()
    odds = [growth.nodes[number].odds for number in best]
    assert odds == sorted(odds, reverse=True) and len(best) == 6
    for place, number in enumerate(best):
        assert growth.nodes[number].parent in (0, *best[:place])
    assert odds == pytest.approx([0.6, 0.36, 0.3, 0.216, 0.18, 0.18])


def test_a_sure_draft_becomes_a_chain_of_the_greatest_depth() -> None:
    growth = grown([0.99, 0.001], most_drafts=4)
    assert [growth.nodes[number].depth for number in growth.best()] == [1, 2, 3, 4]
    assert growth.num_rounds == 4


def test_dear_rounds_are_fewer() -> None:
    numbers = [grown([0.7, 0.1], cost).num_rounds for cost in (0.02, 0.4, 1.0)]
    assert numbers[0] > numbers[1] > numbers[2] == 0


def test_a_chain_does_not_depend_on_what_its_drafts_are_worth() -> None:
    for prior in (0.01, 0.99):
        growth = Growth(1, Calibration(), 3, 3, 5.0, is_chain=True)
        while nodes := growth.choose():
            growth.add(nodes[0], Candidates([7], [prior]))
        assert [growth.nodes[number].depth for number in growth.best()] == [1, 2, 3]


def test_lineage() -> None:
    growth = grown([0.6, 0.3])
    last = growth.best()[-1]
    line = growth.lineage(last)
    assert line[0] == 0 and line[-1] == last
    assert [growth.nodes[number].depth for number in line] == list(range(len(line)))


def test_what_was_right_counts_more_than_what_the_draft_believes() -> None:
    calibration = Calibration()
    assert calibration.odds(0, 0.95) == pytest.approx(0.95)
    for _ in range(50):
        calibration.learn([0.95, 0.02], 1)
    assert calibration.odds(0, 0.95) < 0.1 < 0.9 < calibration.odds(1, 0.02)
    assert calibration.rate > 0.9
    for _ in range(50):
        calibration.learn([0.95, 0.02], None)
    assert calibration.rate < 0.6


def test_old_trials_count_less() -> None:
    calibration = Calibration()
    for _ in range(10 * int(MOST_TRIALS)):
        calibration.learn([0.5], 0)
    assert calibration.asked <= MOST_TRIALS + 1
