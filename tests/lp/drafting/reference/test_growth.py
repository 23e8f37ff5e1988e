"""Growth of a draft tree: which nodes are added, in which order, and how many."""

from __future__ import annotations

import pytest

from lp.drafting.ngrams import LONGEST, Proposals, context_of, mask
from lp.step_cost import StepCost, StepTimes
from tests.lp.drafting.reference.growth import Growth, grow

FLAT = StepTimes.flat()
# The first kinds of three sources with two kinds each.
LIKELY, UNLIKELY, OTHER = 0, 2, 4
PROBABILITIES = [0.8, 0.1, 0.3, 0.05, 0.5, 0.2]


def grown(
    proposals: dict[tuple[int, ...], Proposals], times: StepTimes = FLAT, most_rows: int = 8, **options: int
) -> Growth:
    """The tree under token 1. proposals: what may follow a path, by the path's tokens."""

    by_context = {
        context_of(path) & mask(len(path)): found for path, found in proposals.items() if len(path) <= LONGEST
    }

    def propose(context: int, depth: int) -> Proposals:
        return by_context.get(context & mask(min(depth + 1, LONGEST)), [])

    settings = {"max_depth": 10, "other_rows": 0, **options}
    return grow(context_of([9, 9, 9, 9, 1]), propose, PROBABILITIES, cost=StepCost(times, most_rows), **settings)


def test_nodes_are_added_in_the_order_of_their_probability() -> None:
    growth = grown({
        (1,): [(LIKELY, [10, 11]), (UNLIKELY, [12, 13])],
        (1, 10): [(LIKELY, [20]), (UNLIKELY, [21])],
        (1, 10, 20): [(LIKELY, [30])],
    })  # fmt: skip
    assert growth.tokens == [1, 10, 20, 30, 12, 21, 11, 13]  # 0.8, 0.64, 0.512, 0.3, 0.24, 0.1, 0.05
    assert growth.parents == [-1, 0, 1, 2, 0, 1, 0, 0]
    assert growth.depths == [0, 1, 2, 3, 1, 2, 1, 1]
    assert growth.kinds == [-1, LIKELY, LIKELY, LIKELY, UNLIKELY, UNLIKELY, LIKELY + 1, UNLIKELY + 1]
    assert growth.expected == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.3 + 0.24 + 0.1 + 0.05)


def test_a_token_proposed_by_several_sources_is_one_node_of_the_likeliest_kind() -> None:
    growth = grown({(1,): [(UNLIKELY, [10, 11]), (OTHER, [11, 10])]})
    assert growth.tokens == [1, 11, 10]
    assert growth.kinds == [-1, OTHER, UNLIKELY]
    assert growth.expected == pytest.approx(1.8)


def test_rows_and_depth_are_bounded() -> None:
    endless: dict[tuple[int, ...], Proposals] = {(1,) + (10,) * n: [(LIKELY, [10, 11])] for n in range(20)}
    assert len(grown(endless, most_rows=6).tokens) == 6
    assert len(grown(endless, most_rows=6, other_rows=4).tokens) == 2
    assert max(grown(endless, most_rows=16, max_depth=3).depths) == 3
    assert grown(endless, max_depth=0).tokens == [1]
    assert grown(endless, most_rows=1).tokens == [1]


@pytest.mark.parametrize(("seconds_a_row", "num_rows"), [(2.0, 1), (0.5, 2), (0.2, 3), (0.01, 4)])
def test_only_nodes_that_pay_off_are_kept(seconds_a_row: float, num_rows: int) -> None:
    """A step of one row takes a second. The nodes have the probabilities 0.8, 0.4 and 0.08."""
    times = StepTimes((1, 8), (1.0, 1.0 + 7 * seconds_a_row))
    growth = grown({(1,): [(LIKELY, [10])], (1, 10): [(OTHER, [20])], (1, 10, 20): [(OTHER + 1, [30])]}, times)
    assert len(growth.tokens) == num_rows


def test_growth_passes_an_expensive_row_if_later_rows_pay_off() -> None:
    """The second row is expensive; those after it are free."""
    many: Proposals = [(LIKELY, [10]), (UNLIKELY, [11]), (OTHER, [12])]
    times = StepTimes((1, 2, 8), (1.0, 2.0, 2.0))
    assert len(grown({(1,): many}, times).tokens) == 4
    assert len(grown({(1,): many[:1]}, times).tokens) == 1


def test_proposals_are_kept_for_nodes_that_were_cut() -> None:
    times = StepTimes((1, 2, 8), (1.0, 5.0, 35.0))
    growth = grown({(1,): [(LIKELY, [10, 11])]}, times)
    assert growth.tokens == [1] and growth.proposals[0] == [(LIKELY, [10, 11])]
