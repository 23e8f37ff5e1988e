"""Tables and a plot of what a load has shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from benchmarks.load.counters import FIGURES
from benchmarks.load.figures import LATENCIES, PERCENTILES, Slo, Summary, summarise_all
from benchmarks.load.rounds import Measurements
from benchmarks.load.systems.specs import SystemSpec
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import bullets, markdown_table

# Kinds of scenarios with a number to plot over, and the name of that axis.
AXES = {"streams": "streams", "requests/s": "requests a second that arrive"}


def describe(found: Measurements, specs: Sequence[SystemSpec], slo: Slo) -> str:
    """The body of the report."""
    summaries = summarise_all(found.cells, slo)
    parts = [bullets(f"{spec.name}: {spec.described}" for spec in specs)]
    if found.is_cut_short:
        parts.append("Stopped before the end: rounds or scenarios are missing.")
    if found.left_out:
        parts.append("Left out:\n\n" + bullets(f"{name}: {reason}" for name, reason in found.left_out.items()))
    if not summaries:
        return "\n\n".join([*parts, "Nothing was measured."])
    parts += [_rates(summaries, slo), _phases(summaries), _pauses(summaries), _counted(summaries)]
    parts += [_latencies(summaries, name) for name in LATENCIES]
    parts.append(_errors(summaries))
    return "\n\n".join(part for part in parts if part)


def to_json(found: Measurements, slo: Slo) -> dict[str, Any]:
    return {
        "left_out": found.left_out,
        "is_cut_short": found.is_cut_short,
        "slo": asdict(slo),
        "summaries": [asdict(one) for one in summarise_all(found.cells, slo)],
        "cells": [cell.to_json() for cell in found.cells],
    }


def _rates(summaries: Sequence[Summary], slo: Slo) -> str:
    columns = ["scenario", "system", "output tokens/s", "over the first", "each round", "requests/s"]
    columns += [f"goodput (first {slo.first_token_ms:g} ms, each {slo.per_token_ms:g} ms)", "requests", "errors"]
    rows = []
    for one in summaries:
        base = next(other for other in summaries if other.scenario == one.scenario)
        ratios = [rate / base.rounds[number] for number, rate in one.rounds.items() if base.rounds.get(number)]
        shown = [f"{median(ratios):.2f}x", " ".join(f"{ratio:.2f}" for ratio in ratios)] if ratios else ["-", "-"]
        cells = [one.scenario, one.system, f"{one.tokens_per_s:.1f}", *shown, f"{one.requests_per_s:.2f}"]
        rows.append([*cells, f"{one.goodput:.2f}", one.num_requests, sum(one.errors.values())])
    told = "Rates are medians of the rounds; the ratios are to the first system of the scenario in the same round."
    return f"{told}\n\n{markdown_table(columns, rows, num_text=2)}"


def _latencies(summaries: Sequence[Summary], name: str) -> str:
    columns = ["scenario", "system", "mean", *(f"p{number}" for number in PERCENTILES)]
    rows = [
        [one.scenario, one.system, *(f"{value:.1f}" for value in one.latencies_ms[name].values())]
        for one in summaries
        if one.latencies_ms[name]
    ]
    return f"{name[0].upper()}{name[1:]}, in ms:\n\n{markdown_table(columns, rows, num_text=2)}" if rows else ""


def _phases(summaries: Sequence[Summary]) -> str:
    """The mean latency in each phase of a burst."""
    bursts = [one for one in summaries if one.kind == "burst"]
    if not bursts:
        return ""
    phases = list(dict.fromkeys(phase for one in bursts for phase in one.phases_ms))
    rows = []
    for one in bursts:
        means = [_ms(one.phases_ms.get(phase)) for phase in phases]
        rows.append([one.scenario, one.system, *means, _ms(one.latencies_ms["end-to-end latency"].get("mean"))])
    columns = ["scenario", "system", *phases, "all"]
    return f"Mean latency of the requests of each phase, in ms:\n\n{markdown_table(columns, rows, num_text=2)}"


def _pauses(summaries: Sequence[Summary]) -> str:
    rows = [
        [one.scenario, one.system, f"{median(one.pauses):.1f}", f"{max(one.pauses):.1f}", len(one.pauses)]
        for one in summaries
        if one.pauses
    ]
    if not rows:
        return ""
    columns = ["scenario", "system", "median of tries", "longest", "tries"]
    told = (
        "Longest pause of the stream once the long prompt had been sent, in ordinary steps (the median gap of the same "
        "stream before)"
    )
    return f"{told}:\n\n{markdown_table(columns, rows, num_text=2)}"


def _counted(summaries: Sequence[Summary]) -> str:
    """Ratios of the servers' counters, as far as there are any."""
    names = [name for name in FIGURES if any(name in one.counted for one in summaries)]
    if not names:
        return ""
    rows = [
        [one.scenario, one.system, *(f"{one.counted[name]:.2f}" if name in one.counted else "-" for name in names)]
        for one in summaries
        if one.counted
    ]
    return f"From the servers' metrics:\n\n{markdown_table(['scenario', 'system', *names], rows, num_text=2)}"


def _errors(summaries: Sequence[Summary]) -> str:
    lines = [
        f"{one.scenario}, {one.system}: {count} x {error}" for one in summaries for error, count in one.errors.items()
    ]
    return f"Requests that failed:\n\n{bullets(lines)}" if lines else ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def plot(summaries: Sequence[Summary]) -> Figure | None:
    """Lines over the load if one kind of scenario has several loads, else a bar for each system and scenario."""
    for kind in AXES:
        chosen = [one for one in summaries if one.kind == kind]
        if len({one.load for one in chosen}) > 1:
            return _plot_lines(chosen, AXES[kind])
    return _plot_bars(summaries) if summaries else None


def _plot_lines(summaries: Sequence[Summary], axis: str) -> Figure:
    panels: dict[str, Callable[[Summary], float | None]] = {
        "output tokens per second": lambda one: one.tokens_per_s,
        "time to first token, p50, ms": lambda one: one.latencies_ms["time to first token"].get("p50"),
        "time per output token, p50, ms": lambda one: one.latencies_ms["time per output token"].get("p50"),
    }
    figure, axes = make_axes(len(panels), width=10.0, height=3.4, shares_y=False)
    for panel, (label, read) in zip(axes, panels.items(), strict=True):
        for number, system in enumerate(dict.fromkeys(one.system for one in summaries)):
            points = [(one.load, read(one)) for one in summaries if one.system == system]
            loads, values = zip(*points, strict=True)
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
            panel.plot(loads, [float("nan") if value is None else value for value in values], label=system, **look)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks := sorted({one.load for one in summaries if one.load}), [f"{load:g}" for load in ticks])
        panel.minorticks_off()
        panel.set_xlabel(axis)
        panel.set_title(label)
        panel.set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def _plot_bars(summaries: Sequence[Summary]) -> Figure:
    panels: dict[str, Callable[[Summary], float | None]] = {
        "output tokens per second": lambda one: one.tokens_per_s,
        "mean latency, ms": lambda one: one.latencies_ms["end-to-end latency"].get("mean"),
    }
    names = [f"{one.scenario}: {one.system}" for one in summaries]
    systems = list(dict.fromkeys(one.system for one in summaries))
    figure, axes = make_axes(len(panels), width=9.0, height=1.0 + 0.3 * len(names))
    places = [-number for number in range(len(names))]
    for panel, (label, read) in zip(axes, panels.items(), strict=True):
        colours = [COLOURS[systems.index(one.system) % len(COLOURS)] for one in summaries]
        bars = panel.barh(places, [read(one) or 0.0 for one in summaries], 0.7, color=colours)
        panel.bar_label(bars, fmt="%.0f", padding=2, fontsize=7)
        panel.set_xlabel(label)
        panel.grid(axis="y", visible=False)
        panel.margins(x=0.12)
    axes[0].set_yticks(places, names)
    return figure
