"""How a tree of a second model's drafts grows, and what its drafts turn out to be worth."""

from __future__ import annotations

import pytest

from lp.methods.draft_model.calibration import AGREED, ALONE, MOST_TRIALS, RIVALLED, Calibration
from lp.methods.draft_model.growth import Candidates, Growth


def grown(
    priors: list[float],
    round_cost: float = 0.0,
    max_depth: int = 4,
    most_drafts: int = 6,
    costs: tuple[float, ...] = (),
    pace: float = 1.0,
) -> Growth:
    """Every node gets the same candidates."""
    growth = Growth(1, Calibration(), max_depth, most_drafts, round_cost, is_chain=False, costs=costs)
    growth.pace = pace
    while nodes := growth.choose():
        growth.took_round(nodes)
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


def test_rounds_are_fewer_where_text_is_decoded_fast() -> None:
    """The time of a round is worth the tokens that other steps yield in it."""
    numbers = [grown([0.7, 0.1], 0.2, pace=pace).num_rounds for pace in (1.0, 2.0, 4.0)]
    assert numbers[0] > numbers[1] > numbers[2] == 0


def test_rounds_have_fewer_nodes_where_rows_are_dear() -> None:
    cheap, dear = (grown([0.5, 0.4], 0.1, max_depth=2, costs=costs) for costs in ((), (0.1, 1.0, 2.2, 4.6)))
    assert cheap.num_rounds == 2, "both children of the root are asked for in the second round"
    assert cheap.spent == pytest.approx(0.2)
    assert [node.candidates is not None for node in dear.nodes[:3]] == [True, True, True]
    assert dear.num_rounds == 3 and dear.spent == pytest.approx(0.3), "the root is not computed again"


def test_nodes_above_that_are_not_in_the_cache_cost_rows_again() -> None:
    growth = Growth(1, Calibration(), 3, 8, 0.1, is_chain=False, costs=(0.1, 0.13, 0.17, 0.25))
    growth.took_round([0])
    growth.add(0, Candidates([5, 6], [0.5, 0.4]))
    growth.took_round([1])
    growth.add(1, Candidates([7], [0.9]))
    growth.took_round([2])
    growth.add(2, Candidates([8], [0.9]))
    assert growth.spent == pytest.approx(0.3), "each has one row: the root is in the cache"
    growth.took_round([3])
    assert growth.spent == pytest.approx(0.41), "node 1 was dropped for node 2"


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


def beside_others(round_cost: float = 0.0) -> Growth:
    """Under the root 1: token 5 (0.6), after which 6 follows (0.3), and token 7 (0.2)."""
    growth = Growth(1, Calibration(), 4, 6, round_cost, is_chain=False)
    growth.adopt([5, 6, 7], [0, 1, 0], [0.6, 0.3, 0.2])
    return growth


def test_a_round_asks_where_other_sources_leave_most_open() -> None:
    growth = beside_others()
    assert [growth.left_open(number) for number in range(4)] == pytest.approx([0.2, 0.3, 0.3, 0.2])
    assert growth.choose() == [0, 1, 2, 3]
    growth.add(2, Candidates([8], [0.9]))
    assert growth.left_open(2) == pytest.approx(0.03) and growth.choose() == [0, 1, 3, 4]


def test_a_round_is_worth_what_others_leave_open() -> None:
    assert beside_others(round_cost=0.2).choose()
    surer = Growth(1, Calibration(), 4, 6, 0.2, is_chain=False)
    surer.adopt([5, 6], [0, 1], [0.97, 0.95])
    surer.max_depth = 2  # nothing may follow the last one
    assert not surer.choose()


def test_a_token_that_others_have_gets_no_node_of_its_own() -> None:
    growth = beside_others()
    growth.add(0, Candidates([7, 9], [0.5, 0.25]))
    assert [(node.token, node.parent) for node in growth.nodes] == [(1, -1), (5, 0), (6, 1), (7, 0), (9, 0)]
    # The others leave 0.2 for tokens that they do not have, of which 9 gets a quarter. 0.45 is left for the token that
    # the second model does not name, and what follows it sinks with it.
    assert [node.odds for node in growth.nodes] == pytest.approx([1.0, 0.45, 0.225, 0.5, 0.05])
    assert growth.best()[0] == 3
    assert growth.nodes[0].beside == [AGREED, RIVALLED]


def test_a_token_of_several_sources_is_as_likely_as_the_surest_says() -> None:
    growth = beside_others()
    growth.add(0, Candidates([5], [0.9]))
    assert [node.odds for node in growth.nodes] == pytest.approx([1.0, 0.9, 0.45, 0.1])
    growth = beside_others()
    growth.add(0, Candidates([5], [0.1]))
    assert growth.nodes[1].odds == 0.6


def test_parents_come_before_children_however_odds_change() -> None:
    growth = Growth(1, Calibration(), 8, 40, 0.0, is_chain=False)
    growth.adopt([4] * 6, range(6), [0.9, 0.9, 0.3, 0.3, 0.3, 1e-3])
    while nodes := growth.choose():
        for number in nodes:
            growth.add(number, Candidates([2, 4, 3], [0.55, 0.1 * (number % 4), 0.2]))
    best = growth.best()
    for place, number in enumerate(best):
        assert growth.nodes[number].parent in (0, *best[:place])


def test_candidates_are_judged_by_what_others_proposed_there() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.learn([0.5, 0.2], 0, [AGREED, RIVALLED])
        calibration.learn([0.5, 0.2], 1, [RIVALLED, AGREED])
    assert calibration.odds(0, 0.5, AGREED) > 0.9 and calibration.odds(0, 0.5, RIVALLED) < 0.1
    assert calibration.odds(0, 0.5, ALONE) == 0.5


def test_a_candidate_beside_surer_ones_is_believed_once_it_was_right() -> None:
    calibration = Calibration()
    assert calibration.odds(0, 0.9, RIVALLED, left=0.1) == pytest.approx(0.09)
    assert calibration.odds(0, 0.9, AGREED, left=0.1) == pytest.approx(0.9)
    for _ in range(50):
        calibration.learn([0.9], 0, [RIVALLED])
    assert calibration.odds(0, 0.9, RIVALLED, left=0.1) > 0.9
