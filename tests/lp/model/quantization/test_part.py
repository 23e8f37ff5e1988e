"""Parts of quantised weights have the numbers of the whole weight, and cuts that cannot be are named."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from lp.model.quantization.checkpoints import StoredWeight
from lp.model.quantization.gguf_blocks import BLOCK_TYPES, GgufWeight
from lp.model.quantization.part import UnevenCut, WeightPart, part_of, unpack
from lp.model.quantization.quantize import quantize
from lp.model.quantization.weight import QuantizedWeight, WeightFormat
from lp.model.weight_files import Shard
from tests.gguf_files import blocks

KINDS = [GGMLQuantizationType(kind) for kind in BLOCK_TYPES]
N, K = 40, 768
ROWS = [(range(N),), (range(8, 24),), (range(3, 7), range(20, 21), range(30, 40))]
# Blocks of all types begin at 256, those of some types at 32, 96 and 608.
COLUMNS = [range(K), range(256), range(256, 768), range(32, 96), range(96, 608), range(288, 480)]


def make(kind: GGMLQuantizationType) -> tuple[QuantizedWeight, torch.Tensor]:
    """A weight, and its numbers."""
    made = blocks(np.random.default_rng(0).normal(size=(N, K)).astype(np.float32), kind)
    numbers = torch.from_numpy(gguf.dequantize(made, kind))
    return GgufWeight(torch.from_numpy(made), int(kind), torch.float32), numbers


def numbers_of(weight: QuantizedWeight) -> torch.Tensor:
    return torch.cat([*weight.dequantized()])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_part_has_the_numbers_of_the_whole(kind: GGMLQuantizationType) -> None:
    whole, numbers = make(kind)
    for outputs in ROWS:
        rows = torch.cat([numbers[one.start : one.stop] for one in outputs])
        for inputs in COLUMNS:
            part, expected = WeightPart(whole, outputs, inputs), rows[:, inputs.start : inputs.stop]
            assert part.shape == (len(inputs), len(rows))
            assert torch.equal(numbers_of(part), expected), (outputs, inputs)
            chosen = torch.tensor([[3, 0], [len(rows) - 1, 3]])
            assert torch.equal(part.rows(chosen), expected[chosen])
            some = part.numbers(2, 6)
            assert len(some.codes) == 4 and some.codes.is_contiguous()
            assert some.scales.shape[1] * part.span == len(inputs)


def test_memory_is_the_share_of_a_part() -> None:
    whole, _ = make(GGMLQuantizationType.Q4_K)
    parts = [WeightPart(whole, [range(20)], range(begin, begin + 384)) for begin in (0, 384)]
    assert [part.num_bytes for part in parts] == [whole.num_bytes // 4] * 2
    parts[0].free()
    assert parts[0].num_bytes == 0
    assert len(numbers_of(parts[1])) == 20, "one part does not free another"


def test_inputs_that_share_one_scale_can_be_cut() -> None:
    weight = quantize(torch.randn(4, 32, generator=torch.Generator().manual_seed(0)), 8, torch.float32)
    numbers = numbers_of(weight).repeat(1, 3)
    codes, scales = weight.numbers(0, 4).codes.repeat(1, 3), weight.numbers(0, 4).scales
    one_scale = WeightFormat("int8", 8, zero=128, span=None)
    whole = StoredWeight(one_scale, codes, lambda all, at: all[at], scales, None, (4, 96), torch.float32)
    for inputs in (range(32), range(32, 96), range(64, 96)):
        part = part_of(whole, Shard(1, (inputs,)))
        assert part.span == len(inputs) and torch.equal(numbers_of(part), numbers[:, inputs.start : inputs.stop])


@pytest.mark.parametrize("inputs", [range(16), range(48, 96), range(8, 40)], ids=str)
def test_other_cuts_are_refused_and_can_be_unpacked(inputs: range) -> None:
    whole, numbers = make(GGMLQuantizationType.Q4_0)
    with pytest.raises(UnevenCut, match=f"from {inputs.start} up to {inputs.stop}"):
        part_of(whole, Shard(1, (inputs,)))
    found = unpack(whole, Shard(1, (inputs,)), torch.device("cpu"))
    assert torch.equal(found, numbers[:, inputs.start : inputs.stop])


def test_whole_weights_and_rows_are_unpacked() -> None:
    whole, numbers = make(GGMLQuantizationType.Q6_K)
    assert part_of(whole, None) is whole
    assert torch.equal(unpack(whole, None, torch.device("cpu")), numbers)
    found = unpack(whole, Shard(0, (range(2, 5), range(8, 9))), torch.device("cpu"))
    assert torch.equal(found, torch.cat([numbers[2:5], numbers[8:9]]))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_part_that_is_quantised_is_the_part_of_what_is(bits: int) -> None:
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(3))
    numbers = numbers_of(quantize(weight, bits, torch.float32))
    assert torch.equal(numbers_of(quantize(weight[:, 96:224], bits, torch.float32)), numbers[:, 96:224])
    assert torch.equal(numbers_of(quantize(weight[5:17], bits, torch.float32)), numbers[5:17])


def test_outputs_in_another_order_are_found() -> None:
    _, numbers = make(GGMLQuantizationType.Q8_0)
    made = blocks(numbers.numpy(), GGMLQuantizationType.Q8_0)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    ordered = GgufWeight(torch.from_numpy(made), int(GGMLQuantizationType.Q8_0), torch.float32, order)
    assert torch.equal(numbers_of(ordered), numbers[order])
    part = WeightPart(ordered, [range(4, 20)], range(64, 128))
    assert torch.equal(numbers_of(part), numbers[order][4:20, 64:128])
    assert torch.equal(ordered.rows(torch.tensor([7, 2])), numbers[order][[7, 2]])
