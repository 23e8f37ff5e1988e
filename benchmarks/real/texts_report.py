"""Shows what the texts of all categories say: identity, differing texts, tokens per step, sources of drafts, speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.real.tasks import Figures
from benchmarks.real.texts import AUTO, AUTO_64, INDEXED, INDEXED_64, INDEXED_128, LOOKAHEAD, OTHER_KERNEL, of_run
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, GENERATE
from benchmarks.shared.methods import GENERATE_LOOKUP
from benchmarks.shared.plots import COLOURS, make_axes
from benchmarks.shared.report import markdown_table

# The texts of one run: by category, then by method, a record for each prompt.
RunTexts = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
STEP_METHODS = (GENERATE_LOOKUP, LOOKAHEAD, AUTO, AUTO_64, INDEXED, INDEXED_64, INDEXED_128)
SPEED_METHODS = (AUTOREGRESSIVE, GENERATE_LOOKUP, AUTO, INDEXED)
SOURCE_METHODS = (AUTO, AUTO_64, INDEXED_64)
COLOUR_OF: dict[str, str] = dict(zip((*STEP_METHODS, AUTOREGRESSIVE), COLOURS, strict=True))


def tokens_per_step(texts: Sequence[Mapping[str, Any]]) -> float:
    return sum(text["tokens"] for text in texts) / sum(text["steps"] for text in texts)


def tokens_per_s(texts: Sequence[Mapping[str, Any]]) -> float:
    return sum(text["tokens"] for text in texts) / sum(text["seconds"] for text in texts)


def num_different(run: RunTexts, method: str, other: str) -> int:
    """How many texts of a method differ from those of another."""
    return sum(
        one["digest"] != right["digest"]
        for methods in run.values()
        for one, right in zip(methods[method], methods[other], strict=True)
    )


def different_in_float32(kept: Mapping[str, Figures]) -> list[str]:
    """The methods whose greedy texts in float32 are not all those of `generate`."""
    run = of_run(kept, "float32", 0.0)
    return [name for name in _methods(run) if num_different(run, name, GENERATE)]


def describe(kept: Mapping[str, Figures]) -> dict[str, str]:
    """Sections by their titles. kept: figures by the measurements' names."""
    exact, rounded, sampled = (of_run(kept, *run) for run in (("float32", 0.0), ("bfloat16", 0.0), ("float32", 0.8)))
    sections: dict[str, str] = {}
    if exact:
        sections["Identity with `generate` in float32"] = describe_identity(exact)
    if rounded:
        sections["Differing texts in bfloat16"] = describe_differing(rounded)
    for run, title in ((exact, "greedy"), (sampled, "T = 0.8")):
        if run:
            sections[f"Tokens per step, {title}"] = describe_steps(run)
    if exact:
        sections["Which source earned what, greedy"] = describe_sources(exact)
    for run, dtype in ((exact, "float32"), (rounded, "bfloat16")):
        if run:
            sections[f"Tokens per second, {dtype}"] = describe_speed(run)
    return sections


def describe_identity(run: RunTexts) -> str:
    num_texts = _num_texts(run)
    rows = [(name, f"{num_texts - num_different(run, name, GENERATE)}/{num_texts}") for name in _methods(run)]
    return f"Greedy texts that equal those of `{GENERATE}`:\n\n{markdown_table(['method', 'same text'], rows)}"


def describe_differing(run: RunTexts) -> str:
    num_texts = _num_texts(run)
    rows = [
        (name, *(f"{num_different(run, name, other)}/{num_texts}" for other in (GENERATE, AUTOREGRESSIVE)))
        for name in _methods(run)
    ]
    columns = ["method", "differ from generate", "differ from our autoregressive"]
    return f"`{OTHER_KERNEL}` is `generate` against itself.\n\n{markdown_table(columns, rows)}"


def describe_steps(run: RunTexts) -> str:
    """Tokens per step by category, their mean, and the mean over that of lookahead."""
    table = {category: [tokens_per_step(methods[name]) for name in STEP_METHODS] for category, methods in run.items()}
    means = [fmean(values) for values in zip(*table.values(), strict=True)]
    base = means[STEP_METHODS.index(LOOKAHEAD)]
    rows = [(category, *(f"{value:.2f}" for value in values)) for category, values in table.items()]
    rows.append(("mean", *(f"{value:.2f}" for value in means)))
    rows.append((f"over {LOOKAHEAD}", *(f"{value / base:.2f}x" for value in means)))
    rows_per_step = [
        sum(text["rows"] for one in run.values() for text in one[name])
        / sum(text["steps"] for one in run.values() for text in one[name])
        for name in STEP_METHODS
    ]
    rows.append(("rows per step", *(f"{value:.1f}" for value in rows_per_step)))
    return markdown_table(["category", *STEP_METHODS], rows)


def describe_sources(run: RunTexts) -> str:
    """What share of each method's tokens came from which source of drafts, by category."""
    earned = {(category, name): _earned(methods[name]) for category, methods in run.items() for name in SOURCE_METHODS}
    sources = sorted({source for shares in earned.values() for source in shares})
    rows = [
        (category, name, *(f"{shares.get(source, 0.0):.0%}" for source in sources))
        for (category, name), shares in earned.items()
    ]
    told = "Accepted drafts of each source, as a share of all new tokens; the rest is one token of every step."
    return f"{told}\n\n{markdown_table(['category', 'method', *sources], rows, num_text=2)}"


def describe_speed(run: RunTexts) -> str:
    rows = []
    for category, methods in run.items():
        speed = {name: tokens_per_s(texts) for name, texts in methods.items()}
        base, plain = speed[GENERATE], speed[AUTOREGRESSIVE]
        over = [speed[name] / base for name in (GENERATE_LOOKUP, AUTOREGRESSIVE, AUTO, INDEXED)]
        over += [speed[AUTO] / plain, speed[INDEXED] / plain, speed[AUTO] / speed[GENERATE_LOOKUP]]
        rows.append((category, f"{base:.1f}", *(f"{ratio:.2f}x" for ratio in over)))
    columns = ["category", "generate, tokens/s", "its prompt lookup", "our autoregressive", AUTO, INDEXED]
    columns += [f"{name} over our autoregressive" for name in (AUTO, INDEXED)] + ["auto over prompt lookup"]
    return "The reading of the prompts included. The columns without a unit are over `generate`.\n\n" + markdown_table(
        columns, rows
    )


def plot(kept: Mapping[str, Figures]) -> Figure | None:
    """Tokens per step and speed by category; None if the greedy texts in float32 are missing."""
    exact, rounded = of_run(kept, "float32", 0.0), of_run(kept, "bfloat16", 0.0)
    if not exact:
        return None
    speeds = {"float32": exact, **({"bfloat16": rounded} if rounded else {})}
    figure, panels = make_axes(1 + len(speeds), width=4.0 + 3.0 * (1 + len(speeds)), height=1.2 + 0.8 * len(exact))
    steps = {name: [tokens_per_step(methods[name]) for methods in exact.values()] for name in STEP_METHODS}
    _bars(panels[0], steps, "tokens per step, greedy")
    for axes, (dtype, run) in zip(panels[1:], speeds.items(), strict=True):
        speed = {
            name: [
                tokens_per_s(run[category][name]) / tokens_per_s(run[category][GENERATE]) if category in run else 0.0
                for category in exact
            ]
            for name in SPEED_METHODS
        }
        _bars(axes, speed, f"speed over generate, {dtype}")
        axes.axvline(1.0, color="black", linewidth=0.8)
    panels[0].set_yticks([-number for number in range(len(exact))], list(exact))
    shown = {label: bar for axes in panels for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=3)
    return figure


def _bars(axes: Axes, values: Mapping[str, Sequence[float]], title: str) -> None:
    """A group of bars for each category, with one bar for each method."""
    height = 0.8 / len(values)
    for number, (name, lengths) in enumerate(values.items()):
        places = [0.4 - height * (number + 0.5) - category for category in range(len(lengths))]
        bars = axes.barh(places, lengths, height * 0.9, color=COLOUR_OF[name], label=name)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=6)
    axes.set_xlabel(title)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)


def _methods(run: RunTexts) -> list[str]:
    """The names of all methods but `generate` itself."""
    return [name for name in next(iter(run.values()), {}) if name != GENERATE]


def _num_texts(run: RunTexts) -> int:
    return sum(len(methods[GENERATE]) for methods in run.values())


def _earned(texts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    accepted = Counter[str]()
    for text in texts:
        accepted.update(text["accepted"])
    return {source: number / sum(text["tokens"] for text in texts) for source, number in accepted.items()}
