"""Shows the figures of the compared engines in tables and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from benchmarks.peer_engines.base import PeerPrompt
from benchmarks.peer_engines.comparison import Comparison, PeerRecord, median_ratio, same_text
from benchmarks.peer_engines.own_engine import AUTOREGRESSIVE
from benchmarks.shared.decoded_texts import GENERATE
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import bullets, markdown_table

LLAMA_CPP, OWN = "llama.cpp", "ours"


@dataclass(frozen=True)
class ExpectedTexts:
    """The greedy texts of transformers' `generate` in float32. eos: tokens that end a text."""

    tokens: list[list[int]]
    texts: list[str]
    eos: list[int]

    def num_same(self, record: PeerRecord) -> int | None:
        """How many texts of an engine's last round are the expected ones; None if the engine tells no text."""
        pairs = zip(record.texts[-1], self.tokens, self.texts, strict=True)
        found = [same_text(text, tokens, expected, self.eos) for text, tokens, expected in pairs]
        return None if None in found else sum(map(bool, found))


def to_json(comparison: Comparison, expected: ExpectedTexts) -> dict[str, Any]:
    return {
        "dtype": comparison.dtype,
        "engines": [
            {
                "name": record.name,
                "decoding_tokens_per_s": record.decoding_rates(),
                "whole_tokens_per_s": record.whole_rates(),
                "same_texts": expected.num_same(record),
                "texts": [
                    [(text.num_tokens, text.num_first, text.prompt_s, text.decode_s) for text in texts]
                    for texts in record.texts
                ],
            }
            for record in comparison.records
        ],
        "skipped": comparison.skipped,
        "prompt_s": {
            record.name: [[text.prompt_s for text in texts] for texts in record.texts] for record in comparison.read
        },
    }


def describe(
    comparison: Comparison,
    expected: ExpectedTexts,
    prompts: Sequence[PeerPrompt],
    lengths: Sequence[PeerPrompt] = (),
) -> str:
    """lengths: the prompts whose reading alone was timed."""
    parts = [f"## {comparison.dtype}", _whole_table(comparison, expected), _by_category(comparison, prompts)]
    if comparison.read:
        parts.append(_prompts_read(comparison, lengths))
    if verdict := _verdict(comparison):
        parts.append(verdict)
    if comparison.skipped:
        parts.append(
            "Skipped:\n\n" + bullets(f"{name}: {reason}" for name, reason in sorted(comparison.skipped.items()))
        )
    return "\n\n".join(parts)


def _whole_table(comparison: Comparison, expected: ExpectedTexts) -> str:
    bases = [comparison.record(GENERATE), comparison.record(AUTOREGRESSIVE)]
    columns = ["engine", "decoding alone, tokens/s", "over generate", "over our autoregressive"]
    columns += ["with the prompt, tokens/s", "over generate", "over our autoregressive", "same text"]
    rows = []
    for record in comparison.records:
        same = expected.num_same(record)
        cells = [record.name]
        for rates in (PeerRecord.decoding_rates, PeerRecord.whole_rates):
            cells.append(f"{median(rates(record)):.1f}")
            cells += [f"{median_ratio(rates(record), rates(base)):.2f}x" if base else "-" for base in bases]
        rows.append([*cells, "-" if same is None else f"{same}/{len(expected.tokens)}"])
    return markdown_table(columns, rows)


def _by_category(comparison: Comparison, prompts: Sequence[PeerPrompt]) -> str:
    numbers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        numbers.setdefault(prompt.category, []).append(number)
    rows = [
        [record.name, *(f"{median(record.decoding_rates(chosen)):.1f}" for chosen in numbers.values())]
        for record in comparison.records
    ]
    return f"Decoding alone, by category, tokens per second:\n\n{markdown_table(['engine', *numbers], rows)}"


def _prompts_read(comparison: Comparison, lengths: Sequence[PeerPrompt]) -> str:
    rows = [
        [
            record.name,
            *(f"{len(prompt.tokens) / median(record.prompt_seconds(at)):.0f}" for at, prompt in enumerate(lengths)),
        ]
        for record in comparison.read
    ]
    columns = ["engine", *(f"{len(prompt.tokens):,}" for prompt in lengths)]
    return f"Reading prompts of so many tokens, tokens per second:\n\n{markdown_table(columns, rows)}"


def _verdict(comparison: Comparison) -> str:
    """One sentence on the fastest of ours against the fastest of llama.cpp; empty if one of them is missing."""
    own, others = ([one for one in comparison.records if one.name.startswith(family)] for family in (OWN, LLAMA_CPP))
    if not own or not others:
        return ""
    best, rival = (max(records, key=lambda one: median(one.decoding_rates())) for records in (own, others))
    decoding = median_ratio(best.decoding_rates(), rival.decoding_rates())
    whole = median_ratio(best.whole_rates(), rival.whole_rates())
    return (
        f"The fastest of this project ({best.name}) over the fastest of llama.cpp ({rival.name}): {decoding:.2f} in "
        f"decoding alone, {whole:.2f} with the prompt."
    )


def plot(comparisons: Sequence[Comparison]) -> Figure:
    """A panel for each number format, with a bar for each engine's decoding alone and one with the prompt."""
    names = list(dict.fromkeys(record.name for one in comparisons for record in one.records))
    places = {name: -number for number, name in enumerate(names)}
    figure, panels = make_axes(len(comparisons), width=3.2 + 3.0 * len(comparisons), height=1.0 + 0.4 * len(names))
    kinds = {"decoding alone": PeerRecord.decoding_rates, "with the prompt": PeerRecord.whole_rates}
    for axes, comparison in zip(panels, comparisons, strict=True):
        for number, (label, rates) in enumerate(kinds.items()):
            at = [places[record.name] + 0.19 - 0.38 * number for record in comparison.records]
            values = [median(rates(record)) for record in comparison.records]
            bars = axes.barh(at, values, 0.36, color=COLOURS[number], label=label)
            axes.bar_label(bars, fmt="%.0f", padding=2, fontsize=7)
        axes.set_xlabel(f"tokens per second, {comparison.dtype}")
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
    panels[0].set_yticks(list(places.values()), names)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure
