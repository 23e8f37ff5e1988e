"""The fused forward, interpreted, gives the logits of the model's own, for every architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.gpu.make import make_fused
from lp.model.program.record import Inexpressible
from lp.model.program.translate import cache_shapes, translate
from lp.model.reference import relative_error
from tests.lp.model.gpu.interpreter import Pages, interpret
from tests.lp.test_tree import random_tree
from tests.models import ARCHITECTURES, SLIDING_WINDOW, save_checkpoint
from tests.slow import slow_except

FUSED = [name for name in ARCHITECTURES if name not in ("mixtral", "qwen3_moe")]
# Sizes that are no power of two, and three query heads for one key/value head.
ODD: dict[str, Any] = {
    "hidden_size": 36,
    "head_dim": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 50,
}


@pytest.fixture
def load_model(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Callable[[str, str], CausalModel]:
    def load_model(name: str, dtype: str) -> CausalModel:
        path = save_checkpoint(tmp_path / "odd", "qwen3", **ODD) if name == "odd" else checkpoint_folder(name)
        return load(ModelSettings(str(path), dtype, "cpu", compile=CompileMode.off)).model

    return load_model


@pytest.mark.parametrize(
    ("name", "dtype", "allowed"),
    slow_except(
        [(name, "float32", 1e-5) for name in [*FUSED, "odd"]]
        + [(name, "bfloat16", 0.05) for name in ("llama", "gemma2")],
        ("mistral", "float32", 1e-5),
    ),
)
def test_trees_get_the_models_own_logits(
    name: str,
    dtype: str,
    allowed: float,
    load_model: Callable[[str, str], CausalModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interpret(monkeypatch)
    model = load_model(name, dtype)
    cache, pages = model.make_cache(1), Pages(cache_shapes(translate(model, 5), model.num_layers), 1, model.dtype)
    forward = make_fused(model, pages.arena)
    rng = np.random.default_rng(0)
    for num_rows, num_logits in ((SLIDING_WINDOW + 5, 2), (9, 9), (1, 1)):
        tree = random_tree(rng, num_rows)
        own = model.forward(tree, cache, num_logits)
        found = pages.run(forward, tree, num_logits, num_padded=num_rows % 4)
        assert relative_error(found, own) < allowed, num_rows
        cache.keep(path := tree.path(num_rows - 1))
        pages.cache.keep(path)


def test_merged_weights_are_still_the_models_own(
    load_model: Callable[[str, str], CausalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    model = load_model("llama", "float32")
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    make_fused(model, Pages([(1, 1)], 1).arena)
    after = model.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    attention: Any = model.model.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage()._cdata == attention.v_proj.weight.untyped_storage()._cdata


def test_experts_have_no_fused_form(
    load_model: Callable[[str, str], CausalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    with pytest.raises(Inexpressible, match="the operation"):
        make_fused(load_model("qwen3_moe", "float32"), Pages([(1, 1)], 1).arena)
