"""Products of quantised weights on a GPU: right for every format, with the same bits for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.model.gpu.packed_product import MOST_SCALED, PackedProducts
from lp.model.quantization.packed import pack
from lp.model.quantization.parameter import quantized_parameters
from tests.gpu.test_split_sums import ALLOWED
from tests.lp.model.gpu.test_packed_products import ALL, MadeWeight

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
TIMES = 50


@pytest.mark.parametrize("dtype", list(ALLOWED), ids=str)
@pytest.mark.parametrize("name", [one.name for one in ALL])
def test_products_are_right_and_have_the_same_bits_each_time(name: str, dtype: torch.dtype) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    format = next(one for one in ALL if one.name == name)
    for num_inputs, num_outputs in ((4096, 1024), (256 if format.span == 256 else 192, 130)):
        made = MadeWeight(format, num_outputs, num_inputs, dtype)
        packed, weight = pack(made, device), made.whole().to(dtype).double().cuda()
        for is_invariant in (False, True):
            products = PackedProducts(device, is_invariant)
            x = torch.randn(300, num_inputs, device="cuda").to(dtype)
            for rows in (1, 3, 16, 32, 33, 64, 128, 256, 300):
                found = products.multiply(x[:rows], packed, None)
                expected = x[:rows].double() @ weight.t()
                assert (found.double() - expected).norm() / expected.norm() < ALLOWED[dtype], rows
                if is_invariant or rows <= 256:
                    fewest = 1 if is_invariant or rows <= MOST_SCALED else MOST_SCALED + 1
                    assert torch.equal(products.multiply(x[:fewest], packed, None), found[:fewest]), rows
            first = products.multiply(x[:16], packed, None)
            assert all(torch.equal(products.multiply(x[:16], packed, None), first) for _ in range(TIMES))
            assert not products._counters.any()
        index = torch.tensor([0, num_outputs - 1, 5], device="cuda")
        assert torch.equal(PackedProducts(device).look_up(packed, index, dtype).double(), weight[index])


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_greedy_text_is_that_of_generate_on_the_unpacked_weights(
    weights: str, checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = str(checkpoint_folder("llama"))
    engine = Engine.from_pretrained(folder, dtype="float32", device="cuda", compile="on", weights=weights)
    own = engine.checkpoint.model.model
    assert quantized_parameters(own)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda()
    packed = {id(one): torch.cat([*one.quantized.dequantized()]) for one in quantized_parameters(own)}
    with torch.no_grad():
        for weight, other in zip(reference.parameters(), own.parameters(), strict=True):
            weight.copy_(packed.get(id(other), other))
    for prompt in ([7], [5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(300)]):
        inputs = torch.tensor([prompt], device="cuda")
        expected = reference.generate(inputs, max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
        for decode in (Autoregressive(), Lookahead(3, 3, 3)):
            got = engine.generate(prompt, max_new_tokens=40, decode=decode, sampling=Sampling(0.0, seed=1))
            assert got.token_ids == expected
