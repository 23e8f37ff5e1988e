"""An assignment covers every row, makes the largest load small, and follows from what all ranks know."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.tree import NO_ROWS, PREFIX, TokenTree, TreeBuilder, chain
from parallel.runners.alone import TreePartitioner
from parallel.runners.assignment import AllShare, Assignment, Balanced, Pinned
from parallel.runners.followers import catch_up, drop_most_lagging
from parallel.runners.forest import Forest
from parallel.runners.partition import partition
from parallel.runners.rooms import Rooms
from parallel.runners.shares import KnownTokens, Shares

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
        steps.append(StepInput(sequence(name, num_tokens), tree, num_computed, is_shared=draw(st.booleans())))
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


def loads_of(steps: list[StepInput], numbers: list[list[int]], all_shares: list[Shares]) -> list[int]:
    loads = [0] * len(numbers[0])
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        for replica, rows in shares.rows.items():
            loads[replica] += len(rows) + max(0, step.num_computed - known[replica])
        for replica, num_computed in shares.feeds.items():
            loads[replica] += max(0, num_computed - known[replica])
    return loads


@given(batches(), st.sampled_from([Balanced, AllShare, Pinned]))
@settings(max_examples=100, deadline=None)
def test_every_row_is_computed_and_all_ranks_decide_alike(
    batch: tuple[list[StepInput], list[list[int]]], mode: type[Assignment]
) -> None:
    steps, numbers = batch
    all_shares = mode().assign(steps, numbers)
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        check_cover(step, known, shares)
    assert mode().assign(steps, numbers) == all_shares


@given(batches())
@settings(max_examples=100, deadline=None)
def test_no_replica_has_more_rows_than_where_whole_sequences_are_placed_the_largest_first(
    batch: tuple[list[StepInput], list[list[int]]],
) -> None:
    steps, numbers = batch
    forest = Forest(steps, numbers)
    whole, placed = forest.place_whole(0), forest.place()
    all_shares = forest.shares(placed)
    assert placed.loads == loads_of(steps, numbers, all_shares)
    assert forest.least <= max(placed.loads) <= max(whole.loads)
    largest = max(placed.loads)
    catch_up(steps, numbers, all_shares, placed.loads)
    assert placed.loads == loads_of(steps, numbers, all_shares) and max(placed.loads) == largest


@given(batches(most_steps=1))
@settings(max_examples=100, deadline=None)
def test_a_lone_tree_is_shared_as_by_lookahead_parallelism_but_for_long_lags(
    batch: tuple[list[StepInput], list[list[int]]],
) -> None:
    (step,), (known,) = batch
    if not len(step.tree):
        return
    shares = Balanced().assign([step], [known])
    largest = max(loads_of([step], [known], shares))
    if step.is_shared:
        parts = partition(step.tree, len(known), [max(known) - number for number in known])
        work = [len(part) + step.num_computed - number for part, number in zip(parts, known, strict=True)]
        assert largest <= max(work)
    else:
        assert shares[0] == Shares({known.index(max(known)): range(len(step.tree))})


def test_many_sequences_stay_with_their_owners() -> None:
    steps = [StepInput.of(sequence(name, 100), star(4)) for name in range(16)]
    numbers = [[99 if replica == name % 4 else 0 for replica in range(4)] for name in range(16)]
    all_shares = Balanced().assign(steps, numbers)
    assert all_shares == [Shares({name % 4: range(4)}) for name in range(16)]


def test_a_new_sequence_goes_to_the_replica_with_the_fewest_rows() -> None:
    steps = [StepInput.of(sequence(0, 50), star(30)), StepInput.of(sequence(1, 50), star(25))]
    numbers = [[49, 0, 0], [0, 0, 49]]
    new = StepInput(sequence(2, 50), NO_ROWS, 20)
    shares = Balanced().assign([*steps, new], [*numbers, [0, 0, 0]])
    assert shares[2].feeds[1] == 20


def test_two_streams_on_four_replicas_are_each_shared_by_two_once_followers_have_caught_up() -> None:
    known = [KnownTokens(4) for _ in range(2)]
    known[0].numbers[0] = known[1].numbers[3] = 99
    steps = [StepInput.of(sequence(name, 100), star(21)) for name in range(2)]
    largest = []
    for _ in range(8):
        numbers = [one.numbers for one in known]
        all_shares = Balanced().assign(steps, numbers)
        largest.append(max(loads_of(steps, numbers, all_shares)))
        for one, step, shares in zip(known, steps, all_shares, strict=True):
            one.note(step.tree, len(step.sequence.tokens), shares)
            one.count(step.sequence.tokens + [0])
            one.numbers = [min(number, 99) for number in one.numbers]
    assert largest[0] == 21 and largest[-1] == 11
    assert [len(shares.rows) for shares in all_shares] == [2, 2]


def test_a_long_lag_is_mended_with_spare_rows_alone() -> None:
    tokens, known = list(range(100, 400)), KnownTokens(2)
    known.numbers = [299, 0]
    loads, balanced = [], Balanced()
    for _ in range(40):
        step = StepInput.of(Sequence("a", tokens, 300, GREEDY), star(21))
        numbers = [list(known.count(tokens))]
        shares = balanced.assign([step], numbers)
        loads.append(loads_of([step], numbers, shares))
        known.note(step.tree, len(tokens), shares[0])
        tokens = [*tokens, 7, 9]  # the star's row 7 was right
    assert loads[0] == [21, 21] and max(map(max, loads)) <= 22 and max(loads[-1]) <= 13


def test_a_prompt_is_followed_only_by_replicas_without_other_rows() -> None:
    fed = StepInput(sequence("fed", 90), NO_ROWS, 64)
    other = StepInput.of(sequence("other", 50), star(4), is_shared=False)
    shares = Balanced().assign([fed, other], [[0, 0, 0], [0, 49, 0]])
    assert shares == [Shares({}, {0: 64, 2: 64}), Shares({1: range(4)})]
    assert Balanced().assign([fed], [[0, 0, 0]]) == [Shares({}, dict.fromkeys(range(3), 64))]
    fed.is_shared = False
    assert Balanced().assign([fed], [[0, 0, 0]]) == [Shares({}, {0: 64})]


def test_nobody_follows_a_prompt_that_costs_its_owner_nothing() -> None:
    held = StepInput(sequence("held", 90), NO_ROWS, 64)
    other = StepInput.of(sequence("other", 50), star(4), is_shared=False)
    shares = Balanced().assign([held, other], [[89, 0, 0], [0, 49, 0]])
    assert shares == [Shares({}, {0: 64}), Shares({1: range(4)})]


def test_static_lookahead_parallelism_splits_each_tree_as_if_it_were_alone() -> None:
    steps = [StepInput.of(sequence(name, 10 + name), tree_of(20 + name, name)) for name in range(4)]
    alone = [TreePartitioner(3).split(step.tree, step.sequence.tokens) for step in steps]
    all_shares = AllShare().assign(steps, [[0] * 3] * 4)
    assert [[list(shares.rows[replica]) for replica in range(3)] for shares in all_shares] == alone


def test_a_pinned_sequence_stays_where_it_is_and_the_next_goes_to_the_replica_with_the_fewest() -> None:
    pinned = Pinned()
    steps = [StepInput.of(sequence(name, 10), chain([1])) for name in range(5)]
    places = [next(iter(shares.rows)) for shares in pinned.assign(steps[:4], [[0] * 3] * 4)]
    assert places == [0, 1, 2, 0]
    pinned.forget("1")
    places = [next(iter(shares.rows)) for shares in pinned.assign([steps[4], steps[3]], [[0] * 3, [9, 10, 10]])]
    assert places == [1, 0]


def test_pinned_sequences_go_on_where_an_earlier_epoch_has_left_them() -> None:
    steps = [StepInput.of(sequence(name, 10), chain([1])) for name in range(3)]
    shares = Pinned().assign(steps, [[0, 0], [9, 0], [0, 9]])
    assert [next(iter(one.rows)) for one in shares[1:]] == [0, 1]


def test_followers_lose_their_caches_first_the_most_lagging_before_the_others() -> None:
    known = {name: KnownTokens(2) for name in "abcd"}
    known["a"].numbers = [900, 100]  # of one page at the second replica
    known["b"].numbers = [0, 1000]
    known["c"].numbers = [1000, 980]
    known["d"].numbers = [1000, 20]
    busy = {"d": Shares({0: range(3)}, {1: 40})}
    assert drop_most_lagging(known, busy, Rooms(20, 2, True)) == []
    assert drop_most_lagging(known, busy, Rooms(9, 2, True)) == [("a", 1)]
    assert drop_most_lagging(known, busy, Rooms(8, 2, True)) == [("c", 1)] and known["c"].numbers == [1000, 0]
    assert drop_most_lagging(known, busy, Rooms(1, 2, True)) == [], "owners' caches, and those in use, are not dropped"


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
