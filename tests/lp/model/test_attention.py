"""Tree attention agrees with plain loops over the keys that each row may see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lp.kv_cache.contiguous import ContiguousCache
from lp.model.attention import TreeRows, TreeStep, tree_attention
from lp.model.current_step import running
from lp.model.kernels import AttentionKind, UnsupportedAttention
from lp.tree import PREFIX, TokenTree
from tests.lp.test_tree import random_tree

# H key/value heads, G query heads for each of them, R rows, S = cached prefix + R, D head dimension
SHAPES = [(1, 1, 8), (2, 1, 8), (2, 3, 4), (1, 4, 16)]
# The index that a module without one is given.
LAYER = -1


def visible_keys(tree: TokenTree, row: int, cached: int, window: int | None) -> list[int]:
    """The keys that a row may see: numbers of cached tokens, then `cached` plus numbers of rows."""
    position = cached + int(tree.depths[row])
    keys = [(key, key) for key in range(cached)]
    while row != PREFIX:
        keys.append((cached + row, cached + int(tree.depths[row])))
        row = int(tree.parents[row])
    return sorted(key for key, at in keys if window is None or position - at < window)


def attend_by_loops(
    query: Tensor, key: Tensor, value: Tensor, tree: TokenTree, cached: int, window: int | None, softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[1, R, H*G, D] attention, one row and one head after another."""
    _, num_heads, num_rows, head_dim = query.shape
    group = num_heads // key.shape[1]
    out = torch.zeros(1, num_rows, num_heads, value.shape[3])
    for row in range(num_rows):
        seen = visible_keys(tree, row, cached, window)
        for head in range(num_heads):
            scores = key[0, head // group, seen] @ query[0, head, row] / math.sqrt(head_dim)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks[head : head + 1]])
            out[0, row, head] = scores.softmax(dim=0)[: len(seen)] @ value[0, head // group, seen]
    return out


def make_rows(tree: TokenTree, key: Tensor, value: Tensor) -> TreeRows:
    """Rows of a sequence. key, value: [1, H, S, D], of which those before the rows' own are cached."""
    cached = key.shape[2] - len(tree)
    cache = ContiguousCache(1, key.shape[2])
    cache.update(key[:, :, :cached], value[:, :, :cached], LAYER)
    cache.length = cached
    positions, visibility = torch.from_numpy(tree.depths) + cached, torch.from_numpy(tree.visibility)
    return TreeRows(cache, cached, positions, visibility, torch.float32)


def make_step(*parts: TreeRows, kind: AttentionKind = AttentionKind.two_part) -> TreeStep:
    return TreeStep(kind, parts=list(parts))


@pytest.mark.parametrize("kind", [AttentionKind.two_part, AttentionKind.sdpa, AttentionKind.eager])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 3, 9, 1000])
@pytest.mark.parametrize("cached", [0, 1, 13])
def test_against_loops(cached: int, window: int | None, softcap: float | None, kind: AttentionKind) -> None:
    rng = np.random.default_rng(cached)
    generator = torch.Generator().manual_seed(cached)
    for heads, group, head_dim in SHAPES:
        tree = random_tree(rng, 14)
        query = 2 * torch.randn(1, heads * group, 14, head_dim, generator=generator)
        key, value = torch.randn(2, 1, heads, cached + 14, head_dim, generator=generator)
        with running(make_step(make_rows(tree, key, value), kind=kind)):
            found, weights = tree_attention(
                nn.Module(), query, key[:, :, cached:], value[:, :, cached:], None, sliding_window=window,
                softcap=softcap,
            )  # fmt: skip
        assert weights is None
        torch.testing.assert_close(
            found, attend_by_loops(query, key, value, tree, cached, window, softcap), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", [AttentionKind.two_part, AttentionKind.sdpa, AttentionKind.eager])
@pytest.mark.parametrize("window", [None, 3])
def test_sinks_take_part_in_the_sum_alone(window: int | None, kind: AttentionKind) -> None:
    """With a prefix and without one, for trees and for single rows."""
    generator = torch.Generator().manual_seed(4)
    for cached, num_rows in ((0, 14), (13, 14), (13, 1)):
        tree = random_tree(np.random.default_rng(cached), num_rows)
        query = 2 * torch.randn(1, 6, num_rows, 8, generator=generator)
        key, value = torch.randn(2, 1, 2, cached + num_rows, 8, generator=generator)
        sinks = torch.randn(6, generator=generator)
        with running(make_step(make_rows(tree, key, value), kind=kind)):
            found, _ = tree_attention(
                nn.Module(), query, key[:, :, cached:], value[:, :, cached:], None, sliding_window=window, s_aux=sinks
            )
        expected = attend_by_loops(query, key, value, tree, cached, window, None, sinks)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_each_of_several_sequences_sees_itself_alone(window: int | None) -> None:
    """One row, a branching tree, and a tree without a prefix, in one call; their rows are written behind theirs."""
    rng, generator = np.random.default_rng(3), torch.Generator().manual_seed(3)
    parts, queries, keys, values, expected = [], [], [], [], []
    for num_rows, cached in ((1, 9), (12, 4), (7, 0)):
        tree = random_tree(rng, num_rows)
        query = torch.randn(1, 6, num_rows, 8, generator=generator)
        key, value = torch.randn(2, 1, 2, cached + num_rows, 8, generator=generator)
        expected.append(attend_by_loops(query, key, value, tree, cached, window, None))
        parts.append(make_rows(tree, key, value))
        queries.append(query)
        keys.append(key)
        values.append(value)
    own_keys, own_values = (
        torch.cat([state[:, :, part.cached :] for part, state in zip(parts, states, strict=True)], dim=2)
        for states in (keys, values)
    )
    with running(make_step(*parts)):
        found, _ = tree_attention(
            nn.Module(), torch.cat(queries, dim=2), own_keys, own_values, None, sliding_window=window
        )
    torch.testing.assert_close(found, torch.cat(expected, dim=1), rtol=1e-4, atol=1e-5)
    for part, key, value in zip(parts, keys, values, strict=True):
        assert isinstance(part.cache, ContiguousCache)
        stored = part.cache.read_layer(LAYER, 0, key.shape[2])
        assert torch.equal(stored, torch.cat([key.flatten(), value.flatten()]))


def test_the_models_own_scaling_is_used() -> None:
    tree = random_tree(np.random.default_rng(0), 5)
    query, key, value = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    with running(make_step(make_rows(tree, key, value))):
        found, _ = tree_attention(nn.Module(), query, key, value, None, scaling=0.25)
        expected, _ = tree_attention(nn.Module(), 0.5 * query, key, value, None)
    torch.testing.assert_close(found, expected)


def test_layers_and_windows_are_recorded() -> None:
    tree = random_tree(np.random.default_rng(0), 3)
    states = torch.randn(1, 1, 3, 4)
    step = make_step(make_rows(tree, states, states))
    for layer, window in [(0, None), (1, 8)]:
        module = nn.Module()
        module.layer_idx = layer
        with running(step):
            tree_attention(module, states, states, states, None, sliding_window=window)
    assert step.layers_seen == [0, 1]
    assert step.windows_seen == {None, 8}


def test_unknown_arguments_are_refused_by_name() -> None:
    states = torch.randn(1, 1, 3, 4)
    step = make_step(make_rows(random_tree(np.random.default_rng(0), 3), states, states))
    with running(step):
        with pytest.raises(UnsupportedAttention, match="its attention uses alibi, which tree attention does not know"):
            tree_attention(nn.Module(), states, states, states, None, alibi=torch.zeros(1), position_ids=None)
        tree_attention(nn.Module(), states, states, states, None, alibi=None, is_causal=True)
