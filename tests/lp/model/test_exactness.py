"""The check that tree attention is exact passes good models and finds whatever breaks the tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp.model.attention import TreeRows
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.fast_forward import SequenceRows
from lp.model.kernels import LayerAttention
from lp.tree import TreeBuilder, chain
from tests.models import SLIDING_WINDOW, VOCAB_SIZE, save_checkpoint


def load_tiny(folder: Path, **settings: Any) -> CausalModel:
    return load(ModelSettings(path=str(folder), device="cpu", **settings)).model


def see_everything(step: TreeRows, how: LayerAttention, group: int) -> torch.Tensor:
    """A mask by which every row sees all rows before it, as in a model that ignores the tree."""
    num_rows = len(step.positions)
    visible = torch.ones(num_rows, step.cached + num_rows).tril(step.cached)
    return torch.zeros(visible.shape, dtype=step.dtype).masked_fill_(visible == 0, float("-inf")).repeat(group, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "mixtral"])
def test_broken_visibility_is_found(
    architecture: str,
    dtype: str,
    checkpoint_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load_tiny(checkpoint_folder(architecture), dtype=dtype)
    check_tree(model)
    monkeypatch.setattr(TreeRows, "mask", see_everything)
    with pytest.raises(UnsupportedArchitecture, match="other logits for a token tree than for its paths"):
        check_tree(model)


def test_broken_positions_are_found(checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_tiny(checkpoint_folder("llama"))
    to_device = CausalModel.to_device

    def by_row(self: CausalModel, given: Sequence[SequenceRows]):
        step, tokens = to_device(self, given)
        for rows in step.parts:
            rows.positions = rows.cached + torch.arange(len(rows.positions))
        return step, tokens

    monkeypatch.setattr(CausalModel, "to_device", by_row)
    with pytest.raises(UnsupportedArchitecture, match="other logits"):
        check_tree(model)


def test_a_layer_without_tree_attention_is_found(checkpoint_folder: Callable[[str], Path]) -> None:
    model = load_tiny(checkpoint_folder("llama"))
    own = model.model.model.layers[1].self_attn
    own.config = copy.deepcopy(own.config)
    own.config._attn_implementation = "eager"
    with pytest.raises(UnsupportedArchitecture, match="attention interface in 2 of its 3 layers"):
        check_tree(model)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("xglm", {}, "XGLMForCausalLM .* in 0 of its 2 layers; the others would see"),
        ("mamba", {}, "MambaForCausalLM has layers of type linear_attention; only chunked_attention, full"),
        ("bert", {"is_decoder": False}, "other logits for a token tree"),
        (
            "qwen2_moe",
            {"use_sliding_window": True, "sliding_window": SLIDING_WINDOW, "max_window_layers": 2, "num_experts": 4},
            f"sliding window of {SLIDING_WINDOW} tokens but does not tell .* use model.max_length={SLIDING_WINDOW}",
        ),
    ],
)
def test_architectures_that_cannot_be_exact(
    architecture: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(tmp_path, architecture, **changes)
    with pytest.raises(UnsupportedArchitecture, match=reason) as refusal:
        load_tiny(folder, compile=CompileMode.on)
    assert "\n" not in str(refusal.value)


def test_a_window_longer_than_the_text_does_not_matter(tmp_path: Path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": SLIDING_WINDOW, "max_window_layers": 2, "num_experts": 4}
    folder = save_checkpoint(tmp_path, "qwen2_moe", **changes)
    assert load_tiny(folder, max_length=SLIDING_WINDOW).max_length == SLIDING_WINDOW


@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        "mistral",
        "gemma2",
        "gemma3",
        "gpt2",
        "qwen3_moe",
        "gemma4",
        "gemma3n",
        "llama4",
        "deepseek_v3",
        "gpt_oss",
    ],
)
def test_big_trees_behind_long_prefixes(
    architecture: str,
    checkpoint_folder: Callable[[str], Path],
    reference_of: Callable[[str], torch.nn.Module],
) -> None:
    """Goes further than the check itself: prefixes and trees are longer than the sliding windows."""
    model, reference = load_tiny(checkpoint_folder(architecture)), reference_of(architecture)
    rng = np.random.default_rng(0)
    prefix = rng.integers(2, VOCAB_SIZE, size=60).tolist()
    builder = TreeBuilder(int(rng.integers(2, VOCAB_SIZE)))
    for row in range(1, 40):
        parent = row - 1 if row < 30 else int(rng.integers(row))
        builder.add(int(rng.integers(2, VOCAB_SIZE)), parent)
    tree = builder.build()
    cache = model.make_cache(10)
    model.forward(chain(prefix), cache, num_logits=1)
    cache.keep(range(len(prefix)))
    logits = model.forward(tree, cache, num_logits=len(tree))
    for row in (0, 12, 29, 31, 35, 39):
        path = prefix + tree.tokens[tree.path(row)].tolist()
        with torch.inference_mode():
            expected = reference(torch.tensor([path])).logits[0, -1]
        torch.testing.assert_close(logits[row], expected, rtol=1e-3, atol=1e-4)
