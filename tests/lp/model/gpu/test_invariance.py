"""With invariant kernels, interpreted, a row's logits have the same bits in any company and after any cached prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.gpu.make import make_fused
from lp.model.gpu.product import multiply
from lp.model.program.translate import cache_shapes, translate
from lp.tree import chain
from tests.lp.model.gpu.interpreter import Pages, interpret
from tests.lp.model.gpu.test_attention import Shape, found_in_order, make_case, write
from tests.lp.test_tree import random_tree


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("gemma2", "bfloat16")])
def test_a_rows_logits_do_not_depend_on_its_company(
    name: str, dtype: str, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    model = load(ModelSettings(str(checkpoint_folder(name)), dtype, "cpu", compile=CompileMode.off)).model
    shapes = cache_shapes(translate(model, 5))
    forward = make_fused(model, Pages(shapes, 1, model.dtype).arena, is_invariant=True)
    tree = random_tree(np.random.default_rng(3), 5)
    trunk = [(7 * n + 3) % 290 + 2 for n in range(28)]
    answers: list[Tensor] = []
    for cached in (28, 20):  # the rest of the trunk is computed with the tree, as its trunk
        pages = Pages(shapes, 1, model.dtype)
        forward.arena = pages.arena
        for part in (trunk[:9], trunk[9:cached]):
            pages.run(forward, chain(part), 1)
            pages.cache.keep(range(len(part)))
        answers.append(pages.run(forward, tree.under(trunk[cached:]), len(tree), num_padded=3))
    pages = Pages(shapes, 1, model.dtype)
    forward.arena = pages.arena
    for token in trunk:  # one by one
        pages.run(forward, chain([token]), 1)
        pages.cache.keep([0])
    path = tree.path(4)
    for row in path:
        (alone,) = pages.run(forward, chain([int(tree.tokens[row])]), 1)
        pages.cache.keep([0])
        assert all(torch.equal(alone, together[row]) for together in answers)


def test_products_are_the_same_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    random = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=random) for size in ((130, 70), (50, 70)))
    bias = torch.randn(50, generator=random)
    whole = multiply(x, weight.t(), bias)
    torch.testing.assert_close(whole, torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    for rows in (slice(0, 1), slice(5, 21), slice(65, 130)):
        assert torch.equal(multiply(x[rows], weight.t(), bias), whole[rows])
    assert torch.equal(multiply(x, weight.t().contiguous(), bias), whole)


@pytest.mark.slow
def test_attention_is_the_same_wherever_the_prefix_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    for shape in (Shape(groups=2, has_sinks=True), Shape(window=24), Shape(softcap=5.0, dtype=torch.bfloat16)):
        tree = chain(list(range(100)))
        whole = make_case(shape, tree, 0)
        expected = found_in_order(shape, whole)
        for length in (1, 64, 97):
            part = make_case(shape, chain(list(range(100 - length))), length)
            part = replace(part, query=whole.query[length:])
            write(part.pages, whole.keys, whole.values)
            assert torch.equal(found_in_order(shape, part), expected[length:])
