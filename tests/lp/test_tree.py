"""Token trees, verification, which agrees with an enumeration of all paths, and answers on their way between ranks.

The library gives the same as the Python code for any tree.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp.platform.library import library, python_alone
from lp.tree import PREFIX, Answers, TokenTree, TreeBuilder, chain, descend, verify


def random_tree(rng: np.random.Generator, num_rows: int, vocab_size: int = 4) -> TokenTree:
    builder = TreeBuilder(int(rng.integers(vocab_size)))
    for row in range(1, num_rows):
        builder.add(int(rng.integers(vocab_size)), int(rng.integers(row)))
    return builder.build()


def ancestors(tree: TokenTree, row: int) -> set[int]:
    """The row and all its ancestors."""
    found = set()
    while row != PREFIX:
        found.add(row)
        row = int(tree.parents[row])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_itself_and_its_ancestors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(1, 40)))
    for row in range(len(tree)):
        expected = ancestors(tree, row)
        assert set(np.flatnonzero(tree.visibility[row])) == expected
        assert tree.path(row) == sorted(expected)
        assert tree.depths[row] == len(expected) - 1
        assert all(tree.parents[child] == row for child in tree.children[row])
    assert sum(len(children) for children in tree.children) == len(tree) - 1


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_a_closed_part_see_the_same(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    tree = random_tree(rng, 30)
    chosen = rng.choice(30, size=int(rng.integers(1, 10)), replace=False)
    rows = sorted({ancestor for row in chosen for ancestor in tree.path(int(row))})
    part = tree.take(rows)
    assert (part.tokens == tree.tokens[rows]).all()
    assert (part.depths == tree.depths[rows]).all()
    assert (part.visibility == tree.visibility[np.ix_(rows, rows)]).all()


def test_a_part_that_is_not_closed_is_refused() -> None:
    with pytest.raises(AssertionError, match="closed under ancestors"):
        chain([1, 2, 3]).take([0, 2])


@pytest.mark.parametrize("seed", range(5))
def test_a_trunk_is_put_above_the_root(seed: int) -> None:
    tree = random_tree(np.random.default_rng(seed), 12)
    grown = tree.under([7, 8, 9])
    assert len(grown) == 15
    for row in range(len(tree)):
        tokens = grown.tokens[grown.path(row + 3)].tolist()
        assert tokens == [7, 8, 9, *tree.tokens[tree.path(row)]]
        assert grown.depths[row + 3] == tree.depths[row] + 3
    assert tree.under([]) is tree


def test_rows_remain_greedy_under_a_trunk_that_is_not() -> None:
    builder = TreeBuilder(1)
    builder.add(5, builder.add(6, 0))
    greedy = builder.build(greedy_from=2).under([7, 8]).greedy
    assert greedy is not None and greedy.tolist() == [False, False, False, False, True]
    assert builder.build().under([7, 8]).greedy is None


def test_several_rows_can_be_added_at_once() -> None:
    one_by_one, at_once = TreeBuilder(1), TreeBuilder(1)
    for token, parent in [(5, 0), (6, 1), (7, 1)]:
        one_by_one.add(token, parent)
    assert at_once.extend([5, 6, 7], [0, 1, 1], [1, 2, 2]) == range(1, 4)
    for name in ("tokens", "parents", "depths"):
        assert getattr(at_once.build(), name).tolist() == getattr(one_by_one.build(), name).tolist()


def test_a_row_of_a_chain_sees_all_before_it() -> None:
    assert (chain([5, 6, 7]).visibility == np.tri(3, dtype=bool)).all()
    assert chain([5, 6, 7]).depths.tolist() == [0, 1, 2]
    assert len(chain([])) == 0


def test_descend_follows_rows_of_one_path_together() -> None:
    builder = TreeBuilder(1)
    first, second = builder.add(5, 0), builder.add(5, 0)
    builder.add(6, first)
    deeper = builder.add(7, second)
    deepest = builder.add(8, deeper)
    tree = builder.build()
    text = [5, 7, 8]
    levels = descend(tree, tree.children[0], lambda step, _: text[step] if step < len(text) else None)
    assert levels == [[first, second], [deeper], [deepest]]


def longest_right_path(tree: TokenTree, targets: np.ndarray) -> list[int]:
    """The targets along the longest path on which every token is its parent's target."""
    best: list[int] = [0]
    for row in range(len(tree)):
        path = tree.path(row)
        right = all(tree.tokens[child] == targets[parent] for parent, child in pairwise(path))
        if right and len(path) > len(best):
            best = path
    return [int(targets[row]) for row in best]


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_the_longest_right_path(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(1, 60)), vocab_size=2)
    next_token = rng.integers(2, size=1 << 12)  # like a model's answer, a target depends on the path alone
    targets = np.array([next_token[hash(tuple(tree.tokens[tree.path(row)])) % (1 << 12)] for row in range(len(tree))])
    accepted = verify(tree, targets)
    assert accepted.tokens == longest_right_path(tree, targets)
    assert accepted.tokens == [targets[row] for row in accepted.rows]
    for depth, row in enumerate(accepted.rows):
        assert tree.tokens[tree.path(row)[1:]].tolist() == accepted.tokens[:depth]
    assert [level[0] for level in accepted.drafted] == accepted.rows[1:]
    for depth, level in enumerate(accepted.drafted):
        assert all(tree.tokens[tree.path(row)[1:]].tolist() == accepted.tokens[: depth + 1] for row in level)


def test_without_a_right_draft_there_is_still_the_bonus_token() -> None:
    builder = TreeBuilder(1)
    builder.add(2, 0)
    assert verify(builder.build(), np.array([5, 6])) == ([5], [0], [])


def test_a_right_child_of_a_wrong_node_is_not_accepted() -> None:
    builder = TreeBuilder(1)
    wrong = builder.add(2, 0)
    builder.add(7, wrong)
    assert verify(builder.build(), np.array([5, 7, 8])).tokens == [5]


def test_rows_of_one_path_are_walked_together() -> None:
    """A draft and a window cell may have the same path; here only one of them has a right child."""
    builder = TreeBuilder(1)
    first, second = builder.add(5, 0), builder.add(5, 0)
    builder.add(9, first)
    right = builder.add(6, second)
    accepted = verify(builder.build(), np.array([5, 6, 6, 0, 8]))
    assert accepted.tokens == [5, 6, 8]
    assert accepted.drafted == [[first, second], [right]]


@pytest.mark.parametrize("num_candidates", [0, 1, 4])
@pytest.mark.parametrize("num_top", [None, 0, 3])
def test_answers_survive_packing(num_top: int | None, num_candidates: int) -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2**31 - 1, size=6)
    candidates = rng.integers(0, 99, (6, num_candidates)) if num_candidates else None
    if candidates is not None:
        candidates[:, 0] = targets
    if num_top is None:
        answers = Answers(targets, candidates)
    else:
        logprobs = -rng.random(6, dtype=np.float32)
        logprobs[2] = -np.inf
        tops = rng.integers(0, 99, (6, num_top)), -rng.random((6, num_top), dtype=np.float32)
        answers = Answers(targets, candidates, logprobs, *tops)
    packed = answers.pack()
    assert packed.dtype == np.int32 and packed.shape[0] == 6
    assert packed.shape[1] == max(1, num_candidates) + (0 if num_top is None else 1 + 2 * num_top)
    found = Answers.unpack(packed, num_candidates)
    for name in ("targets", "candidates", "logprobs", "top_tokens", "top_logprobs"):
        before, after = getattr(answers, name), getattr(found, name)
        assert (before is None) == (after is None)
        assert before is None or np.array_equal(before, after)
    assert np.issubdtype(found.targets.dtype, np.integer)


needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
# Few different tokens, so that several rows have the same path, as a draft and a window cell may.
TOKENS = st.integers(0, 2)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    builder = TreeBuilder(draw(TOKENS))
    for row, (token, back) in enumerate(draw(st.lists(st.tuples(TOKENS, st.integers(1, 8)), max_size=38)), 1):
        builder.add(token, max(0, row - back))
    return builder.build()


def again(tree: TokenTree) -> TokenTree:
    """The same tree without what it remembers."""
    return TokenTree(tree.tokens, tree.parents, tree.depths)


@needs_library
@given(
    trees(), st.lists(st.integers(-1, 2), min_size=39, max_size=39), st.integers(1, 40), st.lists(TOKENS, max_size=19)
)
def test_the_same_rows_are_accepted_and_followed(
    tree: TokenTree, answers: list[int], num_verified: int, text: list[int]
) -> None:
    targets = np.array(answers[: len(tree)])
    for number in (None, num_verified):
        found = verify(tree, targets, number)
        with python_alone():
            assert verify(tree, targets, number) == found
    for tokens in (text, tree.tokens[tree.path(len(tree) - 1)].tolist()):
        path = tree.path_along(tokens)
        with python_alone():
            assert tree.path_along(tokens) == path


@needs_library
@given(trees(), st.lists(TOKENS, max_size=19), st.data())
def test_the_same_tokens_are_in_a_part(tree: TokenTree, text: list[int], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(0, len(tree) - 1), max_size=3))
    part = sorted({0, *(row for end in ends for row in tree.path(end))})
    for tokens in (text, tree.tokens[tree.path(len(tree) - 1)[1:]].tolist()):
        number = tree.num_along(tokens, part)
        with python_alone():
            assert tree.num_along(tokens, part) == number


@needs_library
@given(trees(), st.integers(0, 19))
def test_rows_see_the_same_rows(tree: TokenTree, num_above: int) -> None:
    for each in (tree, tree.under([1] * num_above), tree.take(sorted({0, *tree.path(len(tree) - 1)}))):
        seen = again(each).visibility
        with python_alone():
            expected = again(each)
            assert (seen == expected.visibility).all() and seen.dtype == expected.visibility.dtype


def test_trees_without_rows_have_no_path() -> None:
    assert chain([]).path_along([1, 2]) == [] and chain([1]).path_along([]) == []
