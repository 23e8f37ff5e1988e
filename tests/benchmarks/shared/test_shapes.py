"""Named shapes are as large as the models that they are named after."""

from __future__ import annotations

from benchmarks.shared.shapes import SHAPES, num_parameters, read_config


def test_the_named_shapes_have_the_parameters_of_the_models_that_they_are_named_for() -> None:
    assert {name: num_parameters(read_config(name)) for name in SHAPES} == {
        "llama-130m": 134_105_856, "llama-1b": 1_100_048_384, "llama-7b": 6_738_415_616,
        "llama-3.1-8b": 8_030_261_248, "qwen2.5-7b": 7_615_616_512, "gemma-2-9b": 9_241_705_984,
        "qwen3-moe-115m": 114_697_728,
    }  # fmt: skip
