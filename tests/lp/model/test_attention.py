"""Tree attention agrees with plain loops over the keys that each row may see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lp.model.attention import TreeStep, tree_attention
from lp.model.kernels import AttentionKind, UnsupportedAttention
from lp.tree import PREFIX, TokenTree
from tests.lp.test_tree import random_tree

# H key/value heads, G query heads for each of them, R rows, S = cached prefix + R, D head dimension
SHAPES = [(1, 1, 8), (2, 1, 8), (2, 3, 4), (1, 4, 16)]


def visible_keys(tree: TokenTree, row: int, cached: int, window: int | None) -> list[int]:
    """The keys that a row may see: numbers of cached tokens, then `cached` plus numbers of rows."""
    position = cached + int(tree.depths[row])
    keys = [(key, key) for key in range(cached)]
    while row != PREFIX:
        keys.append((cached + row, cached + int(tree.depths[row])))
        row = int(tree.parents[row])
    return sorted(key for key, at in keys if window is None or position - at < window)


def attend_by_loops(
    query: Tensor, key: Tensor, value: Tensor, tree: TokenTree, cached: int, window: int | None, softcap: float | None
) -> Tensor:
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
            out[0, row, head] = scores.softmax(dim=0) @ value[0, head // group, seen]
    return out


def make_step(tree: TokenTree, cached: int, kind: AttentionKind = AttentionKind.two_part) -> TreeStep:
    positions = torch.from_numpy(tree.depths) + cached
    visibility = torch.from_numpy(tree.visibility)
    return TreeStep(kind, cached=cached, positions=positions, visibility=visibility, dtype=torch.float32)


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
        found, weights = tree_attention(
            nn.Module(), query, key, value, None,
            step=make_step(tree, cached, kind), sliding_window=window, softcap=softcap,
        )  # fmt: skip
        assert weights is None
        torch.testing.assert_close(
            found, attend_by_loops(query, key, value, tree, cached, window, softcap), rtol=1e-4, atol=1e-5
        )


def test_the_models_own_scaling_is_used() -> None:
    tree = random_tree(np.random.default_rng(0), 5)
    query, key, value = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    step = make_step(tree, 0)
    found, _ = tree_attention(nn.Module(), query, key, value, None, step=step, scaling=0.25)
    expected, _ = tree_attention(nn.Module(), 0.5 * query, key, value, None, step=step)
    torch.testing.assert_close(found, expected)


def test_layers_and_windows_are_recorded() -> None:
    tree = random_tree(np.random.default_rng(0), 3)
    step = make_step(tree, 0)
    states = torch.randn(1, 1, 3, 4)
    for layer, window in [(0, None), (1, 8)]:
        module = nn.Module()
        module.layer_idx = layer
        tree_attention(module, states, states, states, None, step=step, sliding_window=window)
    assert step.layers_seen == [0, 1]
    assert step.windows_seen == {None, 8}


def test_unknown_arguments_are_refused_by_name() -> None:
    states = torch.randn(1, 1, 3, 4)
    step = make_step(random_tree(np.random.default_rng(0), 3), 0)
    with pytest.raises(UnsupportedAttention, match="its attention uses s_aux, which tree attention does not know"):
        tree_attention(nn.Module(), states, states, states, None, step=step, s_aux=torch.zeros(1), position_ids=None)
    tree_attention(nn.Module(), states, states, states, None, step=step, s_aux=None, is_causal=True)
