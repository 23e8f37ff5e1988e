"""Greedy texts of one model by several decoding methods, which take turns on every prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from benchmarks.shared.report import progress
from lp import Engine, Sampling, Stopping
from lp.methods import DecodeLimits, DecodeSettings, check

WARM_UP = 8
"""New tokens of a text that is not counted: the first pays for what is made once."""


@dataclass(frozen=True)
class Text:
    """One prompt's. seconds: from the first step's start to the last token, the prompt's reading included."""

    tokens: list[int]
    steps: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class Totals:
    """All texts of one method. same_text: how many are those of the first method."""

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


def check_all(methods: Mapping[str, DecodeSettings]) -> None:
    """Raises ValueError for settings that a request would be refused for."""
    for how in methods.values():
        check(how, DecodeLimits())


def compare(
    engine: Engine, methods: Mapping[str, DecodeSettings], prompts: list[list[int]], max_new_tokens: int
) -> dict[str, Totals]:
    """By the methods' names. Which method begins rotates from prompt to prompt."""
    for how in methods.values():
        generate(engine, how, prompts[0], WARM_UP)
    names = list(methods)
    turns = [
        (prompt, names[(first + number) % len(names)])
        for first, prompt in enumerate(prompts)
        for number in range(len(names))
    ]
    texts: dict[str, list[Text]] = {name: [] for name in names}
    for prompt, name in progress(turns, "decoding", unit="text"):
        texts[name].append(generate(engine, methods[name], prompt, max_new_tokens))
    return {name: add_up(mine, texts[names[0]]) for name, mine in texts.items()}


def generate(engine: Engine, how: DecodeSettings, prompt: list[int], max_new_tokens: int) -> Text:
    sampling = Sampling(temperature=0.0, seed=0)
    completion = engine.generate(prompt, decode=how, sampling=sampling, stopping=Stopping(max_new_tokens))
    stats = completion.stats
    return Text(completion.token_ids, stats.steps, stats.rows, stats.decode_s)


def add_up(mine: list[Text], expected: list[Text]) -> Totals:
    return Totals(
        tokens=sum(len(text.tokens) for text in mine),
        steps=sum(text.steps for text in mine),
        rows=sum(text.rows for text in mine),
        seconds=sum(text.seconds for text in mine),
        same_text=sum(text.tokens == right.tokens for text, right in zip(mine, expected, strict=True)),
    )


def demand_same_texts(engine: Engine, totals: Mapping[str, Totals], num_prompts: int) -> None:
    """In float32 all texts must be the same; otherwise ends the program with a message and exit status 1."""
    different = [name for name, total in totals.items() if total.same_text < num_prompts]
    if different and engine.checkpoint.model.dtype == torch.float32:
        raise SystemExit(f"in float32 all texts must be the same, but those of {', '.join(different)} differ")
