"""The tables and the plot of a projection. They say everywhere what is projected and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from benchmarks.projections.network import Network
from benchmarks.projections.projected_speed import Projection, ProjectionCase, fastest
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import bullets, markdown_table

# Reds for lp and other colours for tp, as in the sweep's report.
LINE_COLOURS = [COLOURS[1], COLOURS[4], COLOURS[2], COLOURS[3]]


def to_json(one: Projection, networks: Sequence[Network], measured: Mapping[ProjectionCase, float]) -> dict[str, Any]:
    """One projection for the result file, with its speed on each network."""
    return {
        **asdict(one),
        "case": one.case._asdict(),
        "projected_tokens_per_s": [round(one.tokens_per_s(network), 2) for network in networks],
        "measured_tokens_per_s": measured.get(one.case),
    }


def describe(
    projections: Sequence[Projection],
    measured: Mapping[ProjectionCase, float],
    networks: Sequence[Network],
    notes: Sequence[str],
) -> str:
    latencies = " / ".join(f"{network.latency_us:g}" for network in networks)
    return "\n\n".join(
        [
            "**A projection.** Each rank's part of every step was computed by itself on one device. A step is charged "
            f"its slowest part and, for each collective, a latency of {latencies} us and its bytes over a link of "
            f"{networks[0].gb_per_s:g} GB/s. Tokens per second include the prefill; all figures per step exclude it. "
            "Rows: of a step's largest part. ms: of its slowest part. Collectives, and KB over a rank's link: as "
            "counted. Speed-up: over autoregressive decoding on one device. Real ranks: the same prompts on ranks of "
            "this machine, with nothing projected.",
            bullets(notes),
            _table(projections, measured, networks),
            "The best method for each number of devices; tp may choose autoregressive decoding:",
            _best_table(projections, networks),
        ]
    )


def _table(
    projections: Sequence[Projection], measured: Mapping[ProjectionCase, float], networks: Sequence[Network]
) -> str:
    base = next(one for one in projections if one.case.method == AUTOREGRESSIVE)
    columns = ["mode", "method", "devices", "tokens/step", "rows", "ms/step", "collectives/step", "KB/step"]
    for network in networks:
        columns += [f"PROJECTED tokens/s at {network.latency_us:g} us", "speed-up"]
    rows = []
    for one in projections:
        speeds = []
        for network in networks:
            speed = one.tokens_per_s(network)
            speeds += [f"{speed:.1f}", f"{speed / base.tokens_per_s(network):.2f}x"]
        steps = one.decoding
        rows.append(
            (
                one.case.mode,
                one.case.method,
                one.case.ranks,
                f"{one.tokens_per_step:.2f}",
                *(
                    f"{total / max(steps.steps, 1):.{digits}f}"
                    for total, digits in (
                        (steps.rows, 1),
                        (steps.compute_s * 1e3, 2),
                        (steps.charges.num_collectives, 0),
                        (steps.charges.link_bytes / 1e3, 2),
                    )
                ),
                *speeds,
                f"{measured[one.case]:.1f}" if one.case in measured else "-",
            )
        )
    return markdown_table([*columns, "MEASURED on real ranks"], rows, num_text=2)


def _best_table(projections: Sequence[Projection], networks: Sequence[Network]) -> str:
    rows = []
    for network in networks:
        lp, tp = fastest(projections, "lp", network), fastest(projections, "tp", network)
        for ranks, best in lp.items():
            other = tp.get(ranks)
            rows.append(
                (
                    f"{network.latency_us:g} us",
                    ranks,
                    best.case.method,
                    f"{best.tokens_per_s(network):.1f}",
                    other.case.method if other else "-",
                    f"{other.tokens_per_s(network):.1f}" if other else "-",
                )
            )
    columns = ["latency", "devices", "lp", "PROJECTED tokens/s", "tp", "PROJECTED tokens/s"]
    return markdown_table(columns, rows, num_text=1)


def plot(
    projections: Sequence[Projection],
    measured: Mapping[ProjectionCase, float],
    networks: Sequence[Network],
    method: str,
) -> Figure:
    """Tokens per second against the number of devices, with a panel for each latency.

    method: drawn besides the best one. Measured speeds are hollow marks in the first panel.
    """
    figure, panels = make_axes(len(networks), width=3.2 + 3.2 * len(networks))
    for axes, network in zip(panels, networks, strict=True):
        lines = {
            f"lp, {method}": fastest(projections, "lp", network, [method]),
            "lp, best method": fastest(projections, "lp", network),
            f"tp, {method}": fastest(projections, "tp", network, [method]),
            "tp, best method": fastest(projections, "tp", network),
        }
        for number, (label, line) in enumerate(lines.items()):
            style: dict[str, Any] = {"color": LINE_COLOURS[number], "marker": MARKERS[number]}
            dashed = "--" if label.startswith("tp") else "-"
            axes.plot(list(line), [one.tokens_per_s(network) for one in line.values()], dashed, label=label, **style)
            known = {ranks: measured[one.case] for ranks, one in line.items() if one.case in measured}
            if axes is panels[0]:
                axes.plot(list(known), list(known.values()), linestyle="", fillstyle="none", markersize=9, **style)
        base = next(one for one in projections if one.case.method == AUTOREGRESSIVE)
        axes.axhline(base.tokens_per_s(network), color="black", linewidth=0.8, linestyle=":")
        axes.set_title(f"PROJECTED, {network.latency_us:g} µs per collective")
        axes.set_xlabel("devices")
        axes.set_xticks(sorted({one.case.ranks for one in projections}))
    panels[0].set_ylabel("tokens per second")
    panels[0].set_ylim(bottom=0)
    title = "hollow: measured\ndotted: autoregressive\non one device"
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", title=title)
    return figure
