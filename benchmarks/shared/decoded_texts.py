"""Texts decoded by several methods, which take turns on every prompt, and what each method's texts add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.shared.report import progress
from lp import Engine, Sampling, Stopping
from lp.request import DecodingMethod

# Names of methods in tables and result files.
AUTOREGRESSIVE = "autoregressive"
GENERATE = "transformers generate"


@dataclass
class DecodedText:
    """One prompt's new tokens by one method, and what they took.

    seconds: until the last token, the prompt's prefill included. proposed, accepted: draft tokens by their source.
    """

    tokens: list[int]
    steps: int
    rows: int
    seconds: float = 0.0
    proposed: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodTotals:
    """All texts of one method, added up. same_text: how many of them equal the expected texts."""

    tokens: int
    steps: int
    rows: int
    seconds: float
    same_text: int

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps

    @property
    def rows_per_step(self) -> float:
        return self.rows / self.steps

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def add_up(texts: Sequence[DecodedText], expected: Sequence[DecodedText]) -> MethodTotals:
    """The totals of one method. expected: the text that each prompt should give."""
    return MethodTotals(
        tokens=sum(len(text.tokens) for text in texts),
        steps=sum(text.steps for text in texts),
        rows=sum(text.rows for text in texts),
        seconds=sum(text.seconds for text in texts),
        same_text=sum(text.tokens == right.tokens for text, right in zip(texts, expected, strict=True)),
    )


def take_turns(
    methods: Mapping[str, Callable[[list[int], int], DecodedText]], prompts: Sequence[list[int]]
) -> dict[str, list[DecodedText]]:
    """Decodes every prompt by every method and returns the texts by method, in the order of the prompts.

    methods: each is called with a prompt and its number. Which method begins rotates from prompt to prompt.
    """
    names = list(methods)
    turns = [
        (number, prompt, names[(number + turn) % len(names)])
        for number, prompt in enumerate(prompts)
        for turn in range(len(names))
    ]
    texts: dict[str, list[DecodedText]] = {name: [] for name in names}
    for number, prompt, name in progress(turns, "decoding", unit="text"):
        texts[name].append(methods[name](prompt, number))
    return texts


def decode_text(
    engine: Engine, prompt: list[int], decode: DecodingMethod, sampling: Sampling, max_new_tokens: int
) -> DecodedText:
    """One text by the engine, whose own clock gives the seconds."""
    completion = engine.generate(prompt, decode=decode, sampling=sampling, stopping=Stopping(max_new_tokens))
    stats = completion.stats
    return DecodedText(
        completion.token_ids, stats.steps, stats.rows, stats.decode_s, dict(stats.proposed), dict(stats.accepted)
    )


@torch.inference_mode()
def generate_tokens(model: PreTrainedModel, prompt: list[int], **settings: Any) -> list[int]:
    """The new tokens of transformers' `generate`."""
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **settings)
    return output[0, len(prompt) :].tolist()
