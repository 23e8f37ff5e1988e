"""Greedy texts of one model by several decoding methods."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.shared.decoded_texts import DecodedText, MethodTotals, add_up, decode_text, take_turns
from benchmarks.shared.inputs import encode, load_engine, read_prompts
from lp import Engine, Sampling
from lp.request import DecodeLimits, DecodingMethod

# New tokens of a text that is not counted: the first text pays for what is made only once.
WARM_UP = 8


@dataclass(frozen=True)
class GreedyComparison:
    """totals: by the methods' names."""

    engine: Engine
    num_prompts: int
    totals: dict[str, MethodTotals]

    def demand_same_texts(self) -> None:
        """Ends the program with a message and exit status 1 if texts differ in float32, where they must be the same."""
        different = [name for name, total in self.totals.items() if total.same_text < self.num_prompts]
        if different and self.engine.checkpoint.model.dtype == torch.float32:
            raise SystemExit(f"in float32 all texts must be the same, but those of {', '.join(different)} differ")


def check_methods(parser: argparse.ArgumentParser, methods: Iterable[DecodingMethod]) -> None:
    """Ends the program with a usage error if the runtime would refuse one of the methods' settings."""
    try:
        for decode in methods:
            decode.check(DecodeLimits())
    except ValueError as error:
        parser.error(str(error))


def compare_on_prompts(arguments: argparse.Namespace, methods: Mapping[str, DecodingMethod]) -> GreedyComparison:
    """Reads the prompts and the model that the arguments name, and compares the methods on them.

    arguments: the options of `make_prompts_parser`, and --dtype.
    """
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(arguments.model, arguments.dtype, arguments.device)
    prompts = encode(engine, texts, arguments.max_new_tokens)
    return GreedyComparison(engine, len(prompts), compare(engine, methods, prompts, arguments.max_new_tokens))


def compare(
    engine: Engine, methods: Mapping[str, DecodingMethod], prompts: list[list[int]], max_new_tokens: int
) -> dict[str, MethodTotals]:
    """The totals of each method, by name. The first method's texts are the expected ones."""
    for decode in methods.values():
        decode_greedily(engine, decode, prompts[0], WARM_UP)

    def by(decode: DecodingMethod) -> Callable[[list[int], int], DecodedText]:
        return lambda prompt, number: decode_greedily(engine, decode, prompt, max_new_tokens)

    texts = take_turns({name: by(decode) for name, decode in methods.items()}, prompts)
    expected = next(iter(texts.values()))
    return {name: add_up(own, expected) for name, own in texts.items()}


def decode_greedily(engine: Engine, decode: DecodingMethod, prompt: list[int], max_new_tokens: int) -> DecodedText:
    return decode_text(engine, prompt, decode, Sampling(temperature=0.0, seed=0), max_new_tokens)
