"""The fused forward, interpreted, gives the logits of the model's own, for every architecture."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp.kv_cache.cache import LayerShape
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.gpu import passes
from lp.model.gpu.make import make_fused, make_program
from lp.model.program.translate import cache_shapes, translate
from lp.model.reference import relative_error
from tests.lp.model.gpu.interpreter import Pages, interpret
from tests.lp.test_tree import random_tree
from tests.models import ARCHITECTURES, SLIDING_WINDOW, WITH_PROGRAM, save_checkpoint
from tests.slow import slow_except

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
        [(name, "float32", 1e-5) for name in [*ARCHITECTURES, *WITH_PROGRAM, "odd"]]
        + [(name, "bfloat16", 0.05) for name in ("llama", "gemma2", "qwen3_moe")],
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
    cache, pages = model.make_cache(1), Pages(cache_shapes(translate(model, 5)), 1, model.dtype)
    forward = make_fused(model, pages.arena)
    rng = np.random.default_rng(0)
    for num_rows, num_logits in ((SLIDING_WINDOW + 5, 2), (9, 9), (1, 1)):
        tree = random_tree(rng, num_rows)
        own = model.forward(tree, cache, num_logits)
        found = pages.run(forward, tree, num_logits, num_padded=num_rows % 4)
        assert relative_error(found, own) < allowed, num_rows
        cache.keep(path := tree.path(num_rows - 1))
        pages.cache.keep(path)


def test_sums_that_differ_for_every_number(
    load_model: Callable[[str, str], CausalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router looks scores up by sums over all experts for each chosen one, and the scores are sums over groups."""
    interpret(monkeypatch)
    model = load_model("deepseek_v3", "float32")
    cache, pages = model.make_cache(1), Pages(cache_shapes(translate(model, 5)), 1, model.dtype)
    tree = random_tree(np.random.default_rng(0), 1)
    own = model.forward(tree, cache, 1)
    assert relative_error(pages.run(make_fused(model, pages.arena), tree, 1), own) < 1e-5


def test_merged_weights_are_still_the_models_own(
    load_model: Callable[[str, str], CausalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    model = load_model("llama", "float32")
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    make_fused(model, Pages({0: LayerShape(1, 1, 1)}, 1).arena)
    after = model.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    attention: Any = model.model.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage()._cdata == attention.v_proj.weight.untyped_storage()._cdata


def live_bytes() -> int:
    """Bytes of all tensors that are alive, with shared memory counted once."""
    alive = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in alive}.values())


def test_merging_holds_no_more_than_one_group_twice(
    load_model: Callable[[str, str], CausalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is merged before memory for keys and values takes the rest needs hardly more than its weights."""
    model = load_model("llama", "float32")
    layer: Any = model.model.model.layers[0]
    projections = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
    largest = max(
        sum(one.weight.nbytes for one in group) for group in (projections, [layer.mlp.gate_proj, layer.mlp.up_proj])
    )
    seen: list[int] = []
    merge = passes._merge

    def watched(*arguments):
        merged = merge(*arguments)
        seen.append(live_bytes())
        return merged

    make_program(load_model("llama", "float32"))  # what is made once is not counted
    gc.collect()
    before = live_bytes()
    monkeypatch.setattr(passes, "_merge", watched)
    make_program(model)
    assert len(seen) >= 2 * model.num_layers
    assert max(seen) - before < 1.2 * largest + 0.05 * model.weight_bytes
    monkeypatch.setattr(passes, "_joined", lambda weights, joined=passes._joined: same_memory(joined(weights), weights))
    make_program(model)


def same_memory(joined: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    assert {one.untyped_storage()._cdata for one in weights} == {joined.untyped_storage()._cdata}
    assert torch.equal(joined, torch.cat(weights))
    return joined
