"""Drafts are merged into one trie under the root."""

from __future__ import annotations

import numpy as np
import pytest

from lp.methods.ngram_pool import Continuation, merge
from lp.tree import TokenTree, TreeBuilder


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[tree.path(row)][1:].tolist()) for row in range(1, len(tree))}


def test_shared_prefixes_are_computed_once() -> None:
    builder = TreeBuilder(9)
    sources = merge(builder, [Continuation((1, 2, 3), "prompt"), Continuation((1, 2, 4), "window")], max_depth=8)
    tree = builder.build()
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2]
    assert sources == {1: "prompt", 2: "prompt", 3: "prompt", 4: "window"}


def test_drafts_are_cut_at_the_greatest_depth() -> None:
    builder = TreeBuilder(9)
    merge(builder, [Continuation((1, 2, 3), "prompt")], max_depth=2)
    assert builder.tokens == [9, 1, 2]
    assert merge(builder, [Continuation((5,), "prompt")], max_depth=0) == {}


def test_without_drafts_there_is_only_the_root() -> None:
    builder = TreeBuilder(9)
    assert merge(builder, [], max_depth=4) == {}
    assert len(builder.build()) == 1


@pytest.mark.parametrize("seed", range(10))
def test_every_prefix_occurs_exactly_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = [tuple(rng.integers(3, size=4).tolist()) for _ in range(12)]
    builder = TreeBuilder(9)
    merge(builder, [Continuation(draft, "window") for draft in drafts], max_depth=3)
    tree = builder.build()
    expected = {draft[:length] for draft in drafts for length in range(1, 4)}
    assert paths(tree) == expected
    assert len(tree) == 1 + len(expected)
