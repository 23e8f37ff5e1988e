"""The parts of a forward pass: products with weights are found, attention is repeated as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.projections.rank_cost import share_of
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.steps.forward_parts import attention_alone, is_outermost_product, measure_parts, product_times
from benchmarks.steps.step_curve import make_tree
from benchmarks.steps.variants import with_marks
from lp import Engine
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode


@pytest.mark.parametrize(("architecture", "products"), [("llama", 7), ("gpt2", 4), ("gemma2", 7), ("phi3", 4)])
def test_each_product_with_weights_is_found(
    architecture: str, products: int, engine_of: Callable[[str], Engine]
) -> None:
    model = engine_of(architecture).checkpoint.model
    tree, cache = make_tree(model, 20), fill_cache(model, 40, 20)
    times = product_times(lambda: model.forward(tree, cache, 20), model)
    assert len(times) == products * model.num_layers + 1 and min(times) > 0


def test_attention_by_itself_is_that_of_all_layers_and_leaves_the_cache_as_it_is(llama: Engine) -> None:
    model = llama.checkpoint.model
    tree, cache = make_tree(model, 20), fill_cache(model, 40, 20)
    before = model.forward(tree, cache, 20)
    with torch.inference_mode():
        attention_alone(model, tree, cache)()
    assert cache.length == 40 and torch.equal(model.forward(tree, cache, 20), before)
    assert share_of(model.model.config, torch.float32).windows == [None] * len(cache.keys)


def event(name: str, above: SimpleNamespace | None = None) -> Any:
    return SimpleNamespace(name=name, cpu_parent=above)


@pytest.mark.parametrize(
    ("name", "is_product"),
    [
        ("aoti_torch_cpu__linear_pointwise", True),
        ("aoti_torch_cpu__linear_pointwise_binary", True),
        ("aoti_torch_cpu__mkl_linear", True),
        ("aoti_torch_cpu_addmm_out", True),
        ("graph_3_gemm_m1n384k1024_cpp_fused__unsafe_view_add_embedding_mul_silu_unsqueeze_view_10", True),
        ("graph_2_cpp_fused__unsafe_view_mul_silu_5", False),
        ("aoti_torch_cpu_bmm_out", False),
        ("lookahead::tree_attention", False),
        ("aten::matmul", False),
    ],
)
def test_products_are_told_by_the_marks_of_compiled_code(name: str, is_product: bool) -> None:
    assert is_outermost_product(event(name)) is is_product
    assert is_outermost_product(event(name, above=event("forward"))) is is_product
    assert not is_outermost_product(event("aten::addmm", above=event("aten::t", above=event("aten::linear"))))


def test_the_model_for_the_profiler_is_not_compiled_where_the_model_is_not(llama: Engine, tmp_path: Path) -> None:
    own = llama.checkpoint.model
    marked = with_marks(own, tmp_path)
    assert own.fast is None and marked.fast is None and marked.attention_kind is own.attention_kind
    found = measure_parts("eager", own, marked, fill_cache(own, 40, 20), make_tree(own, 20))
    assert min(found.attention, found.products, found.head) > 0 and (found.cached, found.rows) == (40, 20)


def test_the_native_forward_tells_its_parts_itself(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = load(ModelSettings(str(checkpoint_folder("llama")), device="cpu", compile=CompileMode.on)).model
    assert with_marks(model, tmp_path) is model
    found = measure_parts("compiled", model, model, fill_cache(model, 40, 20), make_tree(model, 20))
    assert min(found.attention, found.products, found.head, found.rest) > 0 and (found.cached, found.rows) == (40, 20)
