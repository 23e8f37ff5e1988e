"""The parts of a tree are closed under ancestors, cover all rows and are about equal in size."""

from __future__ import annotations

import numpy as np
import pytest

from lp.drafting.history import DraftHistory
from lp.methods.lookahead import Lookahead
from lp.platform.library import library, python_alone
from lp.tree import PREFIX, Answers, TokenTree, TreeBuilder, chain
from parallel.runners.partition import partition
from parallel.runners.sharing import TreePartitioner
from tests.lp.decoders import make_decoder


def random_tree(num_rows: int, seed: int) -> TokenTree:
    random = np.random.default_rng(seed)
    builder = TreeBuilder(0)
    for row in range(1, num_rows):
        builder.add(int(random.integers(50)), int(random.integers(max(0, row - 6), row)))
    return builder.build()


def lookahead_tree(window: int, ngram: int, guesses: int) -> TokenTree:
    """A tree as a decoder plans it, with a full window and drafts."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 4, 200).tolist()
    decoder = make_decoder(Lookahead(window, ngram, guesses), tokens, 0, 0.0, DraftHistory())
    for _ in range(ngram):
        tree = decoder.plan(tokens, room=1000, wanted=1000)
        accepted, _ = decoder.commit(tokens, Answers(random.integers(0, 4, len(tree))))
        tokens += accepted.tokens
    return decoder.plan(tokens, room=1000, wanted=1000)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 60, 200])
def test_parts_are_closed_and_cover_all_rows(num_rows: int, num_parts: int) -> None:
    for seed in range(5):
        tree = random_tree(num_rows, seed)
        parts = partition(tree, num_parts)
        assert len(parts) == num_parts
        assert set().union(*parts) == set(range(num_rows))
        for part in parts:
            assert part == sorted(set(part))
            assert part[0] == 0
            parents = set(tree.parents[part].tolist()) - {PREFIX}
            assert parents <= set(part)


def test_parts_of_a_star_are_even() -> None:
    builder = TreeBuilder(0)
    for token in range(30):
        builder.add(token, 0)
    assert sorted(len(part) for part in partition(builder.build(), 3)) == [11, 11, 11]


def test_a_chain_is_not_split() -> None:
    builder = TreeBuilder(0)
    for token in range(9):
        builder.add(token, token)
    assert partition(builder.build(), 3) == [list(range(10)), [0], [0]]


@pytest.mark.parametrize(("num_parts", "most"), [(2, 0.62), (4, 0.36), (8, 0.25)])
def test_a_lookahead_tree_is_shared_evenly(num_parts: int, most: float) -> None:
    """The largest part has little more than 1/n of the rows: each part repeats the beginnings of its paths."""
    tree = lookahead_tree(15, 5, 15)
    assert len(tree) > 90
    assert max(len(part) for part in partition(tree, num_parts)) <= most * len(tree)


@pytest.mark.parametrize("trunks", [[0, 0, 0], [5, 0, 2], [0, 0, 40]])
def test_a_replica_with_a_trunk_gets_less_of_the_tree(trunks: list[int]) -> None:
    builder = TreeBuilder(0)
    for token in range(40):
        builder.add(token, 0)
    parts = partition(builder.build(), 3, trunks)
    assert set().union(*parts) == set(range(41))
    work = [len(part) + trunk for part, trunk in zip(parts, trunks, strict=True)]
    assert max(work) <= max(max(trunks) + 1, -(-(40 + 3 + sum(trunks)) // 3))


@pytest.mark.parametrize("num_parts", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_parts_beside_trunks_are_closed_and_cover_all_rows(num_parts: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tree = random_tree(int(random.integers(1, 80)), seed)
    parts = partition(tree, num_parts, random.integers(0, 9, num_parts).tolist())
    assert set().union(*parts) == set(range(len(tree)))
    for part in parts:
        assert part[0] == 0 and part == sorted(set(part))
        assert set(tree.parents[part].tolist()) - {PREFIX} <= set(part)


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("num_rows", [1, 2, 7, 60, 200])
def test_python_splits_as_the_library_does(num_rows: int) -> None:
    random = np.random.default_rng(num_rows)
    for seed in range(20):
        tree, num_parts = random_tree(num_rows, seed), int(random.integers(2, 9))
        trunks = random.integers(0, 2 + num_rows, num_parts).tolist() if seed % 2 else ()
        parts = partition(tree, num_parts, trunks)
        with python_alone():
            assert partition(tree, num_parts, trunks) == parts


def two_chains(root: int, length: int) -> TokenTree:
    """A root with the chains 10, 11, ... and 20, 21, ... under it."""
    builder = TreeBuilder(root)
    for start in (10, 20):
        row = 0
        for token in range(start, start + length):
            row = builder.add(token, row)
    return builder.build()


def test_a_replica_that_did_not_compute_the_accepted_tokens_gets_less_of_the_next_tree() -> None:
    partitioner = TreePartitioner(2)
    tokens = [1, 2, 3]
    first = partitioner.split(two_chains(3, 6), tokens)
    assert sorted(map(len, first)) == [7, 7] and partitioner.trunks == [2, 2]
    star = TreeBuilder(9)
    for token in range(20):
        star.add(token, 0)
    owner = next(number for number, part in enumerate(first) if 1 in part)  # it has the chain that begins with 10
    second = partitioner.split(star.build(), [*tokens, 10, 11, 12, 13, 9])
    assert len(second[owner]) - len(second[1 - owner]) == 4
    assert (partitioner.trunks[owner], partitioner.trunks[1 - owner]) == (0, 4)
    third = partitioner.split(star.build(), [*tokens, 10, 11, 12, 13, 9, 9])  # no draft was right
    assert sorted(map(len, third)) == [11, 11]


def test_a_sequence_resumed_with_fewer_tokens_has_no_trunks() -> None:
    partitioner = TreePartitioner(2)
    partitioner.split(two_chains(3, 6), [1, 2, 3])
    assert sorted(map(len, partitioner.split(two_chains(2, 6), [1, 2]))) == [7, 7]


def test_a_tree_that_is_not_shared_goes_to_the_replica_that_lacks_least() -> None:
    partitioner = TreePartitioner(3)
    tokens = [1, 2, 3]
    assert partitioner.split(chain([3]), tokens, is_shared=False) == [[0], [], []]
    tokens += [4]
    assert partitioner.split(chain([4]), tokens, is_shared=False) == [[0], [], []]
    # Ranks that rested get a smaller part: the first two lack nothing once they have shared a step.
    tokens += [5]
    wide = TreeBuilder(5)
    for token in range(10, 22):
        wide.add(token, 0)
    shared = partitioner.split(wide.build(), tokens)
    assert len(shared[0]) > max(len(shared[1]), len(shared[2]))
    in_second = next(row for row in shared[1] if row not in shared[0])
    tokens += [int(wide.tokens[in_second]), 6]
    assert partitioner.split(chain([6]), tokens, is_shared=False) == [[], [0], []]


def test_a_replica_that_rested_for_long_computes_its_trunk_alone() -> None:
    partitioner = TreePartitioner(2)
    tokens = list(range(100, 110))
    partitioner.split(chain(tokens[-1:]), tokens, is_shared=False)
    for token in range(40):
        tokens.append(token)
        partitioner.split(chain(tokens[-1:]), tokens, is_shared=False)
    tokens.append(50)
    wide = TreeBuilder(50)
    for token in range(20):
        wide.add(token, 0)
    assert list(map(len, partitioner.split(wide.build(), tokens))) == [21, 1]
    tokens.append(3)
    assert sorted(map(len, partitioner.split(wide.build(), tokens))) == [11, 11]


def test_a_sequence_that_was_resumed_with_fewer_tokens_is_known_that_far() -> None:
    partitioner = TreePartitioner(2)
    tokens = list(range(20))
    partitioner.split(chain(tokens[-1:]), tokens)
    tokens += [20, 21]
    partitioner.split(chain(tokens[-1:]), tokens, is_shared=False)
    assert partitioner.split(chain([5]), tokens[:6], is_shared=False) == [[0], []]
    assert partitioner.split(chain([5, 6, 7]), tokens[:6]) == [[0, 1, 2], [0]]
