"""What ranks find ahead of a step, as it is sent, merged, and planted in the next step's growth."""

from __future__ import annotations

import numpy as np
import pytest

from lp.methods.draft_model.ahead import MOST_ENTRIES, NUM_INTEGERS, Found, GrowthAhead, extend
from lp.methods.draft_model.calibration import Calibration
from lp.methods.draft_model.growth import Candidates, Growth


def step_growth(tokens: tuple[int, ...] = (2, 3)) -> Growth:
    """The growth of a step whose drafts are a chain of other sources."""
    growth = Growth(1, Calibration(), 8, 31, 0.25, is_chain=False, costs=(0.25, 0.3, 0.4, 0.6))
    growth.adopt(tokens, range(len(tokens)), [0.9 ** (1 + depth) for depth in range(len(tokens))])
    return growth


def after(path: tuple[int, ...]) -> Candidates:
    """What the second model proposes after a path, which follows from it alone."""
    first = (sum(path) * 7 + len(path)) % 50 + 10
    return Candidates([first, first + 1, first + 2], [0.8, 0.1, 0.05])


def path_of(growth: Growth, number: int) -> tuple[int, ...]:
    return tuple(growth.nodes[one].token for one in growth.lineage(number))


def run(growth: GrowthAhead) -> list[int]:
    """Grows ahead as the second model does; returns the nodes that were asked."""
    asked = list[int]()
    while nodes := growth.choose():
        growth.took_round(nodes)
        for number in nodes:
            growth.add(number, after(path_of(growth, number)))
        asked += nodes
    return asked


def extended() -> Growth:
    """The growth of a step, to which a rank has added what it has found ahead."""
    growth = step_growth()
    ahead = GrowthAhead(growth, 10, 3.0, 0, 1)
    run(ahead)
    extend(growth, ahead.message()[None])
    return growth


def below_the_end(max_depth: int, *others: int) -> tuple[Growth, list[int]]:
    """The next growth, where both drafts of a step were right and the likeliest token followed; and the candidates that
    are known of its root. others: drafts of other sources.
    """
    last = after((1, 2, 3)).tokens[0]
    found = Found(extended()).follow([2, 3, last])
    assert found is not None
    following = Growth(last, Calibration(), max_depth, 31, 0.25, is_chain=False)
    following.adopt(others, [0] * len(others), [0.1] * len(others))
    found.plant(following)
    return following, after((1, 2, 3, last)).tokens


def known(growth: Growth) -> dict[tuple[int, ...], list[int]]:
    """The candidates of the nodes that were asked, by their paths."""
    return {
        path_of(growth, number): node.candidates.tokens
        for number, node in enumerate(growth.nodes)
        if node.candidates is not None
    }


def test_all_ranks_learn_what_one_has_found() -> None:
    growth = step_growth()
    ahead = GrowthAhead(growth, 10, 2.0, 0, 1)
    asked = run(ahead)
    assert len(asked) > 3 and len(growth.nodes) == 3, "the step's own growth waits for what is sent"
    extend(growth, ahead.message()[None])
    assert known(growth) == known(ahead)


def test_rounds_end_with_the_step_unless_one_more_is_worth_its_time() -> None:
    for pace, most in ((1.0, 5), (8.0, 4)):
        growth = step_growth()
        growth.pace = pace
        ahead = GrowthAhead(growth, 10, 1.0, 0, 1)
        run(ahead)
        assert 3 <= ahead.num_rounds <= most
        assert ahead.spent <= 1.0 or pace < 8.0


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_several_ranks_look_elsewhere(num_ranks: int) -> None:
    growth = step_growth((2, 3, 4, 5))
    parts = [GrowthAhead(growth, 12, 2.0, place, num_ranks) for place in range(num_ranks)]
    asked = [{path_of(part, number) for number in run(part)} for part in parts]
    assert all(asked) and len(set.union(*asked)) == sum(map(len, asked))
    _, time = extend(growth, np.stack([part.message() for part in parts]))
    assert set(known(growth)) == set.union(*asked)
    assert time == pytest.approx(max(part.spent for part in parts)) and time > 0


def test_the_next_growth_begins_below_the_end_of_the_step() -> None:
    following, tokens = below_the_end(8, 99)
    assert following.nodes[0].candidates is not None and following.nodes[0].candidates.tokens == tokens
    assert {following.nodes[child].token for child in following.nodes[0].children} == {99, *tokens}


def test_an_end_that_nobody_drafted_for_has_nothing() -> None:
    growth = extended()
    assert Found(growth).follow([2, 98]) is None
    assert Found(growth).follow([-1]) is None, "no token: the model answered with none"


def test_no_more_is_found_than_can_be_sent() -> None:
    ahead = GrowthAhead(step_growth(), 64, 1000.0, 0, 1)
    assert len(run(ahead)) == MOST_ENTRIES
    assert ahead.message().size == NUM_INTEGERS


def test_what_was_planted_counts_no_deeper_than_the_next_step_may_go() -> None:
    following, _ = below_the_end(0)  # the text ends with the next token
    assert len(following.nodes) == 1
