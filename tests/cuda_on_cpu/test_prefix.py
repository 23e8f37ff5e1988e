"""Attention in two parts on a GPU: which kernels can be used, and the numbers of both parts together."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lp.model.kernels import AttentionKind, LayerAttention, UnsupportedAttention, attend, resolve_kind

pytestmark = pytest.mark.usefixtures("cuda")
GPU, HALF = torch.device("cuda", 0), torch.bfloat16


def resolve(kind: str = "auto", dtype: torch.dtype = HALF, head_dim: int = 64) -> AttentionKind:
    return resolve_kind(AttentionKind(kind), GPU, dtype, [head_dim])


def test_torchs_own_function_is_enough() -> None:
    assert resolve() is AttentionKind.varlen


def test_flash_attn_comes_first(flash_attn: types.ModuleType) -> None:
    assert resolve() is AttentionKind.flash
    assert resolve(dtype=torch.float32) is resolve(head_dim=36) is AttentionKind.sdpa


@pytest.mark.parametrize("fault", ["empty", "broken"])
def test_a_flash_attn_that_cannot_be_used_is_passed_over(fault: str, flash_attn: Any, monkeypatch: Any) -> None:
    if fault == "empty":  # a folder of that name on the path is a package without content
        del flash_attn.flash_attn_with_kvcache
    else:  # built for another version of torch
        monkeypatch.delitem(sys.modules, "flash_attn")

        def fail(name: str) -> None:
            raise ImportError("undefined symbol: _ZN3c10")

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: flash_attn.__spec__)
        monkeypatch.setattr(importlib, "import_module", fail)
    assert resolve() is AttentionKind.varlen
    with pytest.raises(UnsupportedAttention, match="flash-attn is installed but cannot be used"):
        resolve("flash")


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor

    def float(self) -> Inputs:
        return Inputs(*(tensor.float() for tensor in self))


def make_inputs(length: int, rows: int, groups: int, head_dim: int, dtype: torch.dtype = HALF) -> Inputs:
    """Query, keys and values (two heads), and a causal mask."""
    generator = torch.Generator().manual_seed(length + rows)
    shapes = [(1, 2 * groups, rows, head_dim), (1, 2, length + rows, head_dim), (1, 2, length + rows, head_dim)]
    query, key, value = (torch.randn(shape, generator=generator).to(dtype).to(GPU) for shape in shapes)
    mask = torch.full((rows, rows), -torch.inf).triu(1).repeat(groups, 1).to(dtype).to(GPU)
    return Inputs(query, key, value, mask)


@pytest.mark.parametrize("kind", ["flash", "varlen"])
@pytest.mark.parametrize(("rows", "groups", "head_dim"), [(1, 1, 64), (5, 4, 8), (7, 8, 128)])
@pytest.mark.parametrize("length", [0, 1, 255, 256, 257])
def test_two_parts_are_one_attention(
    length: int, rows: int, groups: int, head_dim: int, kind: str, flash_attn: types.ModuleType
) -> None:
    inputs, how = make_inputs(length, rows, groups, head_dim), LayerAttention(head_dim**-0.5)
    expected = attend(*inputs.float(), AttentionKind.eager, how).cpu()
    found = attend(*inputs, AttentionKind(kind), how).cpu()
    assert found.shape == (1, rows, 2 * groups, head_dim)
    assert (found.float() - expected).norm() / expected.norm() < 0.01


def test_float16_does_not_overflow_before_it_is_scaled() -> None:
    """A product of 64 components of 40 is 102,400, and 12,800 when it is scaled; float16 ends at 65,504."""
    inputs, how = make_inputs(0, 3, 1, 64, torch.float16), LayerAttention(0.125)
    inputs.query.fill_(40)
    inputs.key.fill_(40)
    found, expected = attend(*inputs, AttentionKind.varlen, how), attend(*inputs.float(), AttentionKind.eager, how)
    torch.testing.assert_close(found.float().cpu(), expected.cpu(), rtol=1e-2, atol=1e-2)
