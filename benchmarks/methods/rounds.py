"""Rounds in which all methods decode all prompts in turn, and what each method's texts add up to.

What `auto` learns from a text it keeps for the next, as in a server. Knows nothing of reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from transformers import PreTrainedModel

from benchmarks.methods.ways import REFERENCES, Chosen
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, GENERATE, add_up, take_turns
from benchmarks.shared.methods import DecodePrompt, by_engine, generate_counted, timed
from lp import Engine

# New tokens of a text that is not counted: the first text pays for what is made only once.
WARM_UP = 8


def measure_round(
    engine: Engine, model: PreTrainedModel, chosen: Chosen, prompts: Sequence[list[int]], max_new_tokens: int
) -> dict[str, Any]:
    """The totals of one round, by name, as JSON values. model: the engine's checkpoint as transformers runs it."""
    for decode in make_methods(engine, model, chosen, WARM_UP).values():
        decode(prompts[0], 0)
    methods = make_methods(engine, model, chosen, max_new_tokens)
    texts = take_turns({name: timed(decode) for name, decode in methods.items()}, prompts)
    totals = {}
    for name, own in texts.items():
        reference = chosen.ways[name][1].reference if name in chosen.ways else None
        total = add_up(own, texts[reference] if reference else own)
        totals[name] = {
            "tokens": total.tokens,
            "steps": total.steps,
            "rows": total.rows,
            "seconds": round(total.seconds, 4),
            "same_text": total.same_text if reference else None,
        }
    return totals


def make_methods(
    engine: Engine, model: PreTrainedModel, chosen: Chosen, max_new_tokens: int
) -> dict[str, DecodePrompt]:
    """All that take turns, by name: the ways of `generate` that are compared with, then our own."""

    def by_generate(name: str) -> DecodePrompt:
        keywords = {"max_new_tokens": max_new_tokens, "do_sample": False, **REFERENCES[name]}
        return lambda prompt, seed: generate_counted(model, prompt, seed, keywords)

    methods = {name: by_generate(name) for name in chosen.references}
    return methods | {
        name: by_engine(engine, settings, way.temperature, max_new_tokens)
        for name, (settings, way) in chosen.ways.items()
    }


@dataclass(frozen=True)
class MethodFigures:
    """What all rounds show of a method.

    calls: of the model for a text, the mean. over_autoregressive, over_generate: medians over the rounds of its tokens
    per second over theirs in the same round. reference: see Way. same_text: texts of all rounds that are the
    reference's; None without one. num_texts: of all rounds.
    """

    method: str
    tokens_per_step: float
    calls: float
    rows_per_step: float
    tokens_per_s: float
    over_autoregressive: float
    over_generate: float
    reference: str | None
    same_text: int | None
    num_texts: int


def summarise(rounds: Sequence[Mapping[str, Any]], chosen: Chosen, num_prompts: int) -> list[MethodFigures]:
    """The figures of each method, in the order of the rounds' totals."""
    figures = []
    for name in rounds[0]:
        own = [one[name] for one in rounds]
        sums = {key: sum(one[key] for one in own) for key in ("tokens", "steps", "rows")}
        reference = chosen.ways[name][1].reference if name in chosen.ways else None
        figures.append(
            MethodFigures(
                method=name,
                tokens_per_step=round(sums["tokens"] / sums["steps"], 3),
                calls=round(sums["steps"] / (num_prompts * len(rounds)), 2),
                rows_per_step=round(sums["rows"] / sums["steps"], 2),
                tokens_per_s=round(median(one["tokens"] / one["seconds"] for one in own), 2),
                over_autoregressive=round(_over(rounds, name, AUTOREGRESSIVE), 3),
                over_generate=round(_over(rounds, name, GENERATE), 3),
                reference=reference,
                same_text=sum(one["same_text"] for one in own) if reference else None,
                num_texts=num_prompts * len(rounds),
            )
        )
    return figures


def _over(rounds: Sequence[Mapping[str, Any]], name: str, base: str) -> float:
    def speed(one: Mapping[str, Any], method: str) -> float:
        return one[method]["tokens"] / one[method]["seconds"]

    return median(speed(one, name) / speed(one, base) for one in rounds)
