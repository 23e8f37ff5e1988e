"""Shares cover every row, split every tree over the ranks that have its sequence, and are the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.step_cost import StepTimes
from lp.tree import NO_ROWS, PREFIX, TokenTree, TreeBuilder, chain
from parallel.runners.shares import KnownTokens, Shares
from parallel.runners.sharing import LARGEST_LAG, Sharing, TreePartitioner

GREEDY = Sampling(temperature=0.0, seed=0)


def sequence(name: object, num_tokens: int) -> Sequence:
    return Sequence(str(name), list(range(2, 2 + num_tokens)), num_tokens, GREEDY)


def tree_of(num_rows: int, seed: int) -> TokenTree:
    random = np.random.default_rng(seed)
    builder = TreeBuilder(1)
    for row in range(1, num_rows):
        builder.add(int(random.integers(50)), int(random.integers(max(0, row - 6), row)))
    return builder.build()


def star(num_rows: int) -> TokenTree:
    builder = TreeBuilder(1)
    for token in range(1, num_rows):
        builder.add(token, 0)
    return builder.build()


@st.composite
def batches(draw: st.DrawFn, most_steps: int = 12) -> tuple[list[StepInput], list[list[int]]]:
    """Steps, some of which only feed, and how many tokens each replica has computed of their sequences."""
    num_replicas = draw(st.integers(1, 6))
    steps, numbers = [], []
    for name in range(draw(st.integers(1, most_steps))):
        num_tokens = draw(st.integers(2, 60))
        num_rows = draw(st.integers(0, 20))
        num_computed = num_tokens - 1 if num_rows else draw(st.integers(1, num_tokens - 1))
        tree = tree_of(num_rows, draw(st.integers(0, 99))) if num_rows else NO_ROWS
        known = st.one_of(
            st.just(0), st.integers(0, num_tokens - 1), st.integers(max(0, num_tokens - 4), num_tokens - 1)
        )
        numbers.append(draw(st.lists(known, min_size=num_replicas, max_size=num_replicas)))
        steps.append(StepInput(sequence(name, num_tokens), tree, num_computed))
    return steps, numbers


def check_cover(step: StepInput, known: list[int], shares: Shares) -> None:
    """Every row is in a part, every part is closed under ancestors, and nobody feeds beyond the step or for nothing."""
    for rows in shares.rows.values():
        assert list(rows) == sorted(set(rows)) and rows[0] == 0
        assert set(step.tree.parents[list(rows)].tolist()) - {PREFIX} <= set(rows)
    assert set().union(*shares.rows.values()) == set(range(len(step.tree)))
    assert not set(shares.rows) & set(shares.feeds)
    assert all(num_computed <= step.num_computed for num_computed in shares.feeds.values())
    if not len(step.tree):
        assert max(shares.feeds.values()) == step.num_computed


def forced(is_shared: bool | None) -> Sharing:
    """Shares trees always or never; None lets it decide."""
    sharing = Sharing()
    sharing.is_shared = is_shared
    return sharing


WAYS: list[Callable[[], Sharing]] = [Sharing, lambda: forced(True), lambda: forced(False), lambda: Sharing(is_dp=True)]


@given(batches(), st.sampled_from(WAYS))
@settings(max_examples=100, deadline=None)
def test_every_row_is_computed_and_all_ranks_decide_alike(
    batch: tuple[list[StepInput], list[list[int]]], make: Callable[[], Sharing]
) -> None:
    steps, numbers = batch
    all_shares = make().share(steps, numbers)
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        check_cover(step, known, shares)
    assert make().share(steps, numbers) == all_shares


def test_each_tree_of_a_batch_is_split_as_if_it_were_alone() -> None:
    steps = [StepInput.of(sequence(name, 10 + name), tree_of(20 + name, name)) for name in range(4)]
    alone = [TreePartitioner(3).split(step.tree, step.sequence.tokens) for step in steps]
    all_shares = Sharing().share(steps, [[0] * 3] * 4)
    assert [[list(shares.rows[replica]) for replica in range(3)] for shares in all_shares] == alone


def test_all_compute_a_prompt_and_one_a_root_without_drafts() -> None:
    prompt = StepInput(sequence("prompt", 90), NO_ROWS, 64)
    last, plain = (StepInput.of(sequence(name, 90), chain([1])) for name in ("last", "plain"))
    shares = Sharing().share([prompt, last, plain], [[0, 0], [64, 64], [88, 89]])
    assert shares == [Shares({}, {0: 64, 1: 64}), Shares({0: range(1)}, {1: 89}), Shares({1: range(1)})]


def test_a_prompt_whose_tokens_are_scored_is_computed_by_one() -> None:
    tree = chain([1, 2, 3])
    tree.scored = np.array([1, 2, 3])
    assert Sharing().share([StepInput.of(sequence("scored", 9), tree)], [[8, 8]]) == [Shares({0: range(3)})]


def test_a_replica_that_lacks_many_tokens_gets_some_in_each_step_and_no_rows_until_then() -> None:
    known, num_tokens = KnownTokens(3), 3 * LARGEST_LAG
    known.numbers = [num_tokens - 1, num_tokens - 1, 0]
    fed = []
    for _ in range(4):
        step = StepInput.of(sequence("a", num_tokens), star(31))
        (shares,) = Sharing().share([step], [known.count(step.sequence.tokens)])
        fed.append(shares.feeds)
        assert set(shares.rows) == ({0, 1} if shares.feeds else {0, 1, 2})
        known.note(step.tree, num_tokens, shares)
    assert fed == [{2: LARGEST_LAG}, {2: 2 * LARGEST_LAG}, {}, {}]


ALONE = StepTimes((1, 64), (0.010, 0.070))
TIMES = StepTimes((1, 64), (0.014, 0.030), 2, ALONE)


def test_one_replica_takes_a_small_tree_if_that_is_faster_and_the_prompt_has_been_shared() -> None:
    sharing = Sharing()
    sharing.use_times(TIMES)
    small, large = (StepInput.of(sequence("a", 50), star(number)) for number in (3, 60))
    takers = [set(sharing.share([step], [[49, 49]])[0].rows) for step in (small, small, large)]
    assert takers == [{0, 1}, {0}, {0, 1}]
    assert all(len(shares.rows) == 2 for shares in sharing.share([small, large], [[49, 49]] * 2)), "many are shared"
    sharing.use_times(StepTimes((1, 64), (0.014, 0.030), 2))
    assert len(sharing.share([small], [[49, 49]])[0].rows) == 2, "nothing is known of one replica alone"


def test_a_sequence_of_dp_stays_with_its_owner_and_the_next_goes_to_the_replica_with_the_fewest() -> None:
    sharing = Sharing(is_dp=True)
    steps = [StepInput.of(sequence(name, 10), chain([1])) for name in range(5)]
    places = [next(iter(shares.rows)) for shares in sharing.share(steps[:4], [[0] * 3] * 4)]
    assert places == [0, 1, 2, 0]
    sharing.forget("1")
    places = [next(iter(shares.rows)) for shares in sharing.share([steps[4], steps[3]], [[0] * 3, [9, 10, 10]])]
    assert places == [1, 0]
    held = Sharing(is_dp=True).share([steps[0]], [[0, 9, 0]])
    assert list(held[0].rows) == [1], "a prefix was copied there"


@pytest.mark.parametrize("num_parts", [2, 3])
def test_known_tokens_are_those_of_accepted_rows_of_ones_own(num_parts: int) -> None:
    known = KnownTokens(num_parts)
    tokens, tree = [5, 6, 7], star(9)
    known.note(tree, 3, Shares({0: [0, 1, 2], 1: list(range(9))}))
    assert known.count([*tokens, 8, 4])[:2] == [3, 4]  # the row of token 8 is in the second part alone
    assert known.count([*tokens, 8, 4]) == known.numbers
    known.note(NO_ROWS, 5, Shares({}, {0: 4}))
    assert known.count([*tokens, 8, 4])[:2] == [4, 4]
    assert known.count(tokens[:2])[:2] == [1, 1], "the sequence was resumed with fewer tokens"
