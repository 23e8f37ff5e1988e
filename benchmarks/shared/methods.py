"""Decoding methods that take turns on the same prompts: transformers' own beside those of this project."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.shared.decoded_texts import (
    AUTOREGRESSIVE,
    GENERATE,
    DecodedText,
    add_up,
    decode_text,
    generate_tokens,
    take_turns,
)
from lp import Auto, Autoregressive, Engine, Sampling
from lp.model.extensions import ROUND_ROWS
from lp.request import DecodingMethod

GENERATE_LOOKUP = "transformers prompt lookup (10)"
LOOKUP_TOKENS = 10
AUTO = "auto"
# New tokens of the first texts, which are not counted.
WARM_UP = 32
# How often each text is decoded where the medians of its seconds are compared.
ROUNDS_OF_TEXTS = 3

# Decodes a prompt with a seed.
DecodePrompt = Callable[[list[int], int], DecodedText]


def make_methods(
    engine: Engine,
    model: PreTrainedModel,
    settings: Mapping[str, DecodingMethod],
    temperature: float,
    max_new_tokens: int,
) -> dict[str, DecodePrompt]:
    """Lists the methods by name: transformers' `generate` and its prompt lookup, then those of `settings`.

    model: the engine's checkpoint as transformers runs it.
    """
    generation: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature:
        generation |= {"temperature": temperature, "top_k": 0}

    def by_generate(**more: Any) -> DecodePrompt:
        return lambda prompt, seed: generate_counted(model, prompt, seed, {**generation, **more})

    methods = {GENERATE: by_generate(), GENERATE_LOOKUP: by_generate(prompt_lookup_num_tokens=LOOKUP_TOKENS)}
    return methods | {name: by_engine(engine, decode, temperature, max_new_tokens) for name, decode in settings.items()}


def by_engine(engine: Engine, decode: DecodingMethod, temperature: float, max_new_tokens: int) -> DecodePrompt:
    """A method of this project."""
    return lambda prompt, seed: decode_text(engine, prompt, decode, sampling_at(temperature, seed), max_new_tokens)


def sampling_at(temperature: float, seed: int) -> Sampling:
    """Samples from the whole vocabulary."""
    return Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)


def generate_counted(model: PreTrainedModel, prompt: list[int], seed: int, settings: dict[str, Any]) -> DecodedText:
    """A text by transformers, with its forward passes counted.

    The prompt's rows are not counted, as in lp's statistics.
    """
    rows: list[int] = []

    def count(module, arguments, keywords):
        rows.append(keywords["input_ids"].shape[1])

    torch.manual_seed(seed)
    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        tokens = generate_tokens(model, prompt, **settings)
    finally:
        hook.remove()
    return DecodedText(tokens, len(rows), sum(rows) - len(prompt) + 1)


def timed(decode: DecodePrompt, first_seed: int = 0, clock: Callable[[], float] = time.perf_counter) -> DecodePrompt:
    """The same method, timed by a clock that is the same for all methods. Prompt n has seed `first_seed` + n."""

    def decode_timed(prompt: list[int], number: int) -> DecodedText:
        begin = clock()
        text = decode(prompt, first_seed + number)
        text.seconds = clock() - begin
        return text

    return decode_timed


def describe_costs(costs: Sequence[float]) -> str:
    """Says what forwards of ROUND_ROWS cost."""
    return ", ".join(f"{cost:.2f} with {num_rows} rows" for num_rows, cost in zip(ROUND_ROWS, costs, strict=True))


def gain_of_auto(engine: Engine, prompts: list[list[int]], temperature: float, max_new_tokens: int) -> float:
    """The speed of auto, as a multiple of plain decoding's, on a CPU.

    Each text is decoded several times by both, and counts with the median of its seconds. With one thread these are of
    processor time, which other programs do not lengthen much.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    settings: dict[str, DecodingMethod] = {AUTOREGRESSIVE: Autoregressive(), AUTO: Auto()}

    def methods(num_tokens: int) -> dict[str, DecodePrompt]:
        return {
            name: timed(by_engine(engine, one, temperature, num_tokens), clock=clock) for name, one in settings.items()
        }

    take_turns(methods(WARM_UP), prompts[:1])
    rounds = [take_turns(methods(max_new_tokens), prompts) for _ in range(ROUNDS_OF_TEXTS)]
    usual = {
        name: [_with_usual_seconds(same) for same in zip(*(one[name] for one in rounds), strict=True)]
        for name in settings
    }
    totals = {name: add_up(own, usual[AUTOREGRESSIVE]) for name, own in usual.items()}
    return totals[AUTO].tokens_per_s / totals[AUTOREGRESSIVE].tokens_per_s


def _with_usual_seconds(same: tuple[DecodedText, ...]) -> DecodedText:
    """One of the texts of the same prompt, with the median of all their seconds."""
    return dataclasses.replace(same[0], seconds=median(text.seconds for text in same))
