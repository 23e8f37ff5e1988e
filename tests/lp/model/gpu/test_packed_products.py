"""Products and lookups of packed weights, interpreted: their numbers are those of float64, for every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.fast_forward import SequenceRows
from lp.model.gpu import packed_product
from lp.model.gpu.make import make_fused, make_program
from lp.model.gpu.packed_product import MANY_PROGRAMS, MOST_DECODED, MOST_SCALED, PackedProducts, num_shares, tile_of
from lp.model.gpu.plan import RunLookup, RunPackedProduct
from lp.model.program.steps import Product
from lp.model.program.translate import cache_shapes, translate
from lp.model.quantization.checkpoints import E2M1, E4M3
from lp.model.quantization.gguf_blocks import BLOCK_TYPES
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.packed import PackedWeight, join, pack, pack_experts
from lp.model.quantization.parameter import quantized_parameters
from lp.model.quantization.quantize import FORMATS, Weights
from lp.model.quantization.weight import Numbers, QuantizedWeight, WeightFormat, dequantize
from lp.model.reference import relative_error
from tests.lp.model.gpu.interpreter import Pages, interpret, run_backwards
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

CPU = torch.device("cpu")
ZEROS: dict[str, Any] = {"has_minima": True, "has_minimum_steps": True}
ALL = [
    *(one.format for one in BLOCK_TYPES.values()),
    *FORMATS.values(),
    WeightFormat("int4 with zero points", 4, span=64, **ZEROS),
    WeightFormat("int8 with zero points", 8, span=None, scale=torch.float32, **ZEROS),
    WeightFormat("FP8", 8, codebook=E4M3, span=64, scale=torch.float32),
    WeightFormat("FP8 of one scale", 8, codebook=E4M3, span=None, scale=torch.float32),
    WeightFormat("MXFP4 of one scale", 4, codebook=E2M1, span=None, scale=torch.uint8),
]
BY_NAME = {one.name: one for one in ALL}
ROWS = (1, 3, 16, 33, 128)
# As far as float32 sums and the rounding of the result go.
ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}


class MadeWeight(QuantizedWeight):
    """A weight of random numbers. Zero points share their scales with the numbers, as those of checkpoints do."""

    def __init__(self, format: WeightFormat, num_outputs: int, num_inputs: int, dtype: torch.dtype, seed: int = 0):
        super().__init__(format, num_outputs, num_inputs, dtype)
        random = torch.Generator().manual_seed(seed)

        def integers(low: int, high: int, size: int, dtype: torch.dtype) -> Tensor:
            return torch.randint(low, high, (num_outputs, size), generator=random).to(dtype)

        def scales() -> Tensor:
            num_scales = num_inputs // self.span
            if format.scale == torch.uint8:
                return integers(120, 128, num_scales, torch.uint8)
            made = torch.rand(num_outputs, num_scales, generator=random) * 0.01 + 0.002
            return made.to(format.scale)

        codes = integers(0, 1 << format.bits, num_inputs, torch.uint8)
        if format.codebook is not None:
            codes[torch.tensor(format.codebook)[codes.int()].isnan()] = 0
        steps = None
        if format.step is not None:
            low, high = (-128, 128) if format.step == torch.int8 else (0, 64)
            steps = integers(low, high, num_inputs // format.group, format.step)
        own = scales()
        minima = None if not format.has_minima else own if "zero points" in format.name else scales()
        minimum_steps = integers(0, 16, num_inputs // 32, torch.uint8) if format.has_minimum_steps else None
        self._numbers = Numbers(codes, own, steps, minima, minimum_steps)

    @property
    def num_bytes(self) -> int:
        """Returns the bytes in a file, where codes take as many bits as they have and zero points 4 or 8."""
        numbers, bits = self._numbers, self.format.bits
        others = sum(one.nbytes for one in (numbers.scales, numbers.steps) if one is not None)
        if numbers.minima is not None and numbers.minima is not numbers.scales:
            others += numbers.minima.nbytes
        if numbers.minimum_steps is not None:
            others += numbers.minimum_steps.nbytes * 32 // self.span * bits // 8
        return numbers.codes.numel() * bits // 8 + others

    def free(self) -> None:
        raise NotImplementedError

    def numbers(self, first: int, last: int) -> Numbers:
        parts = {one.name: getattr(self._numbers, one.name) for one in fields(Numbers)}
        cut = {name: part[first:last] for name, part in parts.items() if part is not None}
        if self._numbers.minima is self._numbers.scales:
            cut["minima"] = cut["scales"]
        return Numbers(**cut)

    def rows(self, outputs: Tensor) -> Tensor:
        return self.whole()[outputs]

    def whole(self) -> Tensor:
        """float32 [N, K]."""
        return dequantize(self.format, self._numbers)


def num_inputs_of(format: WeightFormat) -> int:
    """An odd number of groups, where the format lets there be one."""
    return {256: 512, 64: 192}.get(format.span or 0, 160)


def made_of(name: str, dtype: torch.dtype = torch.float32, num_outputs: int = 70) -> MadeWeight:
    return MadeWeight(BY_NAME[name], num_outputs, num_inputs_of(BY_NAME[name]), dtype)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_packed_weight_has_the_same_numbers_in_little_more_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeWeight(BY_NAME[name], 70, 512, torch.float32)
    monkeypatch.setattr("lp.model.quantization.packed.AT_ONCE", 4000)
    packed, expected = pack(made, CPU), made.whole()
    assert torch.equal(torch.cat([*packed.dequantized()]), expected)
    outputs = torch.tensor([[3, 69], [0, 3]])
    assert torch.equal(packed.rows(outputs), expected[outputs])
    assert packed.num_bytes <= 1.1 * made.num_bytes
    packed.free()
    assert packed.num_bytes == 0 and packed.num_outputs == 70


@pytest.mark.parametrize("name", ["int4 with zero points", "Q6_K"])
def test_weights_are_joined_and_cut(name: str) -> None:
    some = [MadeWeight(BY_NAME[name], rows, 512, torch.float32, seed=rows) for rows in (10, 3, 7)]
    whole = join([pack(one, CPU) for one in some])
    expected = torch.cat([one.whole() for one in some])
    assert torch.equal(torch.cat([*whole.dequantized()]), expected)
    parts = [whole.part(0, 10), whole.part(10, 13), whole.part(13, 20)]
    assert join(parts) is whole and join(parts[1:]).owner is whole
    assert torch.equal(torch.cat([*join(parts[1:]).dequantized()]), expected[10:])
    assert torch.equal(
        torch.cat([*join(parts[::-1]).dequantized()]), torch.cat([expected[13:], expected[10:13], expected[:10]])
    )


CASES = [(name, rows, dtype) for name in BY_NAME for rows in ROWS for dtype in ALLOWED if dtype != torch.float16]
QUICK = [
    *((name, 3, torch.float32) for name in BY_NAME),
    ("int4", 1, torch.bfloat16), ("Q4_K", 16, torch.bfloat16), ("Q6_K", 33, torch.bfloat16),
    ("FP8", 128, torch.bfloat16), ("int4", 33, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize(("name", "num_rows", "dtype"), slow_except(CASES, *QUICK), ids=str)
def test_products_are_those_of_float64(
    name: str, num_rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    made, random = made_of(name, dtype), torch.Generator().manual_seed(1)
    packed, weight = pack(made, CPU), made.whole().to(dtype).double()
    x = torch.randn(num_rows, made.num_inputs + 16, generator=random).to(dtype)[:, 16:]
    bias = torch.randn(made.num_outputs, generator=random).to(dtype) if num_rows % 2 else None
    products = PackedProducts(CPU)
    found = products.multiply(x, packed, bias)
    expected = x.double() @ weight.t() + (0 if bias is None else bias.double())
    assert found.dtype == dtype
    assert (found.double() - expected).norm() / expected.norm() < ALLOWED[dtype]
    assert not products._counters.any(), "the next product finds the counters as this one did"


@pytest.mark.parametrize("name", slow_except(BY_NAME, "int4", "Q6_K", "IQ4_NL"))
def test_rows_are_looked_up_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    made, index = made_of(name), torch.tensor([69, 0, 3, 3])
    packed = pack(made, CPU)
    for table, expected in ((packed, made.whole()), (packed.part(0, 70), made.whole())):
        for dtype in (torch.float32, torch.bfloat16):
            found = PackedProducts(CPU).look_up(table, index, dtype)
            assert torch.equal(found, expected[index].to(dtype))


def test_a_part_of_a_weight_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    made, x = made_of("Q4_K"), torch.randn(2, 512, generator=torch.Generator().manual_seed(1))
    packed = pack(made, CPU)
    found = PackedProducts(CPU).multiply(x, packed.part(10, 33), None)
    torch.testing.assert_close(found, x @ made.whole()[10:33].t(), atol=1e-4, rtol=1e-5)


def test_more_rows_than_graphs_have_are_multiplied_by_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    made = made_of("Q5_1")
    packed, bias = pack(made, CPU), torch.ones(70)
    x = torch.randn(MOST_DECODED + 1, 160, generator=torch.Generator().manual_seed(1))
    expected = x @ made.whole().t() + 1
    for at_once in (1 << 20, 30 * 160):
        monkeypatch.setattr(packed_product, "AT_ONCE", at_once)
        found = PackedProducts(CPU).multiply(x, packed, bias)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", slow_except([torch.float32, torch.bfloat16], torch.bfloat16), ids=str)
@pytest.mark.parametrize("is_invariant", [False, True])
def test_a_rows_numbers_do_not_depend_on_the_number_of_rows(
    is_invariant: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret(monkeypatch)
    packed, products = pack(made_of("Q6_K", dtype), CPU), PackedProducts(CPU, is_invariant)
    x = torch.randn(70, 512, generator=torch.Generator().manual_seed(1)).to(dtype)
    few, many = products.multiply(x[:MOST_SCALED], packed, None), products.multiply(x, packed, None)
    assert torch.equal(few, many[:MOST_SCALED]) or not (is_invariant or dtype == torch.float32)
    for rows, whole in ((slice(0, 1), few), (slice(5, 21), few), (slice(37, 70), many)):
        assert torch.equal(products.multiply(x[rows], packed, None), whole[rows])


def test_a_product_does_not_depend_on_which_program_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    packed, products = pack(MadeWeight(BY_NAME["int4"], 70, 2048, torch.float32), CPU), PackedProducts(CPU)
    assert num_shares(2048, 70) == 4
    x = torch.randn(3, 2048, generator=torch.Generator().manual_seed(1))
    expected = products.multiply(x, packed, None)
    run_backwards(monkeypatch)
    assert torch.equal(products.multiply(x, packed, None), expected)


def test_inputs_are_split_where_few_programs_would_run() -> None:
    assert num_shares(4096, 4096) == 8 and num_shares(4096, 128256) == 1 and num_shares(32, 32) == 1
    for num_outputs in (1, 64, 4096, 6144, 28672):
        num_tiles = -(-num_outputs // tile_of(1, 2).outputs)
        assert num_tiles * num_shares(14336, num_outputs) <= max(MANY_PROGRAMS, num_tiles)


def test_more_tiles_than_there_are_counters_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    monkeypatch.setattr(packed_product, "MOST_TILES", 3)
    made, x = MadeWeight(BY_NAME["int8"], 70, 512, torch.float32), torch.randn(40, 512)
    found = PackedProducts(CPU).multiply(x, pack(made, CPU), None)
    torch.testing.assert_close(found, x @ made.whole().t(), atol=1e-4, rtol=1e-5)


@pytest.fixture
def packed_model(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CausalModel]]:
    """Loads a model whose weights are quantised and packed as on a GPU."""
    interpret(monkeypatch)

    def make(name: str, dtype: str, weights: Weights) -> CausalModel:
        settings = ModelSettings(str(checkpoint_folder(name)), dtype, "cpu", weights, compile=CompileMode.off)
        model = load(settings).model
        for one in quantized_parameters(model.model):
            is_mixture = isinstance(one.quantized, QuantizedExperts)
            one.quantized = pack_experts(one.quantized, CPU) if is_mixture else pack(one.quantized, CPU)
        return model

    yield make


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except(
        [("llama", "float32"), ("llama", "bfloat16"), ("gpt2", "float32"), ("phi3", "float32"), ("gemma2", "float32"),
         ("qwen3_moe", "float32"), ("gpt_oss", "float32")],
        ("llama", "float32"), ("gpt2", "float32"), ("gpt_oss", "float32"),
    ),
)  # fmt: skip
def test_the_fused_forward_of_a_quantised_model_gives_its_own_logits(
    name: str, dtype: str, packed_model: Callable[..., CausalModel]
) -> None:
    model = packed_model(name, dtype, Weights.int4)
    shapes = cache_shapes(translate(model, 5))
    pages = Pages(shapes, 1, model.dtype)
    forward = make_fused(model, pages.arena)
    kinds = [type(one) for one in forward.plan]
    assert RunPackedProduct in kinds and RunLookup in kinds
    tree = random_tree(np.random.default_rng(3), 5)
    found = pages.run(forward, tree, 5, num_padded=2)
    own = model.forward_eager([SequenceRows(tree, model.make_cache(), 5)])[0]
    assert relative_error(found, own) < (1e-4 if dtype == "float32" else 0.05)


def test_weights_of_one_format_are_merged_and_others_stay(packed_model: Callable[..., CausalModel]) -> None:
    model = packed_model("llama", "float32", Weights.int4)
    layer: Any = model.model.get_submodule("model.layers.0.self_attn")
    eight = MadeWeight(FORMATS[8], layer.v_proj.out_features, layer.v_proj.in_features, torch.float32)
    layer.v_proj.weight.quantized = pack(eight, CPU)
    before = [torch.cat([*one.quantized.dequantized()]) for one in quantized_parameters(model.model)]
    num_bytes = sum(one.quantized.num_bytes for one in quantized_parameters(model.model))
    program = make_program(model)
    weights = [step.weight for step in program.steps if isinstance(step, Product)]
    assert all(isinstance(one, PackedWeight) for one in weights)
    # The first layer has four products and the one that stays; each other layer has four, and then there is the head.
    assert len(weights) == 4 * model.num_layers + 2
    assert layer.q_proj.weight.quantized.owner is layer.k_proj.weight.quantized.owner is weights[0]
    assert layer.v_proj.weight.quantized is weights[1]
    after = quantized_parameters(model.model)
    assert all(
        torch.equal(torch.cat([*one.quantized.dequantized()]), two) for one, two in zip(after, before, strict=True)
    )
    assert sum(one.quantized.num_bytes for one in after) == num_bytes
    again = [step.weight for step in make_program(model).steps if isinstance(step, Product)]
    assert again == weights, "what is merged is not merged anew"
