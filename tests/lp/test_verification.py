"""Verification agrees with an enumeration of all paths, and answers survive packing for their way between ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from lp.tree import Answers, TokenTree, TreeBuilder, verify
from tests.lp.test_tree import random_tree


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
