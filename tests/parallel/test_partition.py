"""The parts of a tree: closed, covering, balanced."""

from __future__ import annotations

import numpy as np
import pytest

from lp.decoding import make_decoder
from lp.drafting.experience import Experience
from lp.methods import Lookahead
from lp.tree import PREFIX, TokenTree, TreeBuilder
from lp.verification import Answers
from parallel.partition import partition


def random_tree(num_rows: int, seed: int) -> TokenTree:
    random = np.random.default_rng(seed)
    builder = TreeBuilder(0)
    for row in range(1, num_rows):
        builder.add(int(random.integers(50)), int(random.integers(max(0, row - 6), row)))
    return builder.build()


def lookahead_tree(window: int, ngram: int, guesses: int) -> TokenTree:
    """A tree as decoding plans it, with a full window and drafts for its root."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 4, 200).tolist()
    decoder = make_decoder(Lookahead(window, ngram, guesses), tokens, 0, 0.0, Experience())
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
    """The largest part is near 1/n of the rows plus the path that each part must repeat."""
    tree = lookahead_tree(15, 5, 15)
    assert len(tree) > 90
    assert max(len(part) for part in partition(tree, num_parts)) <= most * len(tree)
