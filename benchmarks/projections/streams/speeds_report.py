"""The report of benchmarks/projections/load.py: what it supposes, tables and a plot. Every speed says that it is
PROJECTED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.projections.streams.curves import Machine
from benchmarks.projections.streams.systems import ELASTIC, LP, ONE_RANK, SERVERS, Speed, elastic_size
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import bullets, markdown_table

# The order of the columns.
SYSTEMS = (f"{ONE_RANK}, plain", ONE_RANK, LP, SERVERS, ELASTIC, "TP, plain", "TP")
PLOTTED = (ONE_RANK, LP, SERVERS, ELASTIC, "TP")
# The rows of the table of a curve.
SHOWN_ROWS = (1, 8, 16, 32, 64, 128, 256)

# Tokens per second of all streams, by the number of streams and the system.
Speeds = Mapping[int, Mapping[str, float]]


def describe(
    machines: Sequence[Machine],
    steps: Mapping[str, Sequence[Speed]],
    speeds: Mapping[str, Speeds],
    ranks: int,
    notes: Sequence[str],
) -> str:
    """steps, speeds: by the machine's name."""
    parts = [f"**PROJECTED. No {ranks} ranks have run any of this.**", bullets([*_assumptions(ranks), *notes])]
    parts += ["## Curves of one rank and of TP, ms a step by rows", _table_of_curves(machines, ranks)]
    for machine in machines:
        name = machine.name
        found = speeds[name]
        parts += [f"## PROJECTED tokens/s of all streams: {name}", _table_of_speeds(found, by_stream=False)]
        parts += [f"## PROJECTED tokens/s of one stream: {name}", _table_of_speeds(found, by_stream=True)]
        parts += [f"## PROJECTED: {ELASTIC} and other systems: {name}", _table_of_elastic(found, ranks)]
        parts += [f"## PROJECTED steps: {name}", _table_of_steps(steps[name])]
    return "\n\n".join(parts)


def _assumptions(ranks: int) -> list[str]:
    return [
        "Exact: tokens, trees, the budget's choices, and which rank computes what. The engine, its budget and the "
        "shares of the ranks are real; streams continue real greedy texts, and the model answers their drafts.",
        "Computed: a step takes as long as the rank that takes longest, by the curve of one rank at its rows, its "
        "sequences and their cached tokens, and the exchange. Ranks do not disturb one another.",
        "Measured: the processor time of the engine's own work in each step, which every rank does and which is added "
        "in full, though on a GPU a part of it would be hidden.",
        "Decoding alone: steps in which a prompt is computed do not count, nor those after the first stream has ended.",
        f"LP: all {ranks} ranks share every tree. {SERVERS}: {ranks} engines of one rank each, with even shares of the "
        f"streams, which is the most that static DP can be. {ELASTIC}: groups of ranks that share trees, whose size is "
        "that of parallel=auto with so many streams, with even shares of these. TP: one replica on all ranks. Plain: "
        "without drafts.",
        "No rank is short of memory, though LP and TP have all streams on every rank.",
    ]


def _table_of_curves(machines: Sequence[Machine], ranks: int) -> str:
    rows = []
    for machine in machines:
        for name, curve in (("one rank", machine.one), (f"TP={ranks}", machine.tensor)):
            extras = f"{1e3 * curve.extras.sequence:.2f}", f"{1e3 * curve.extras.thousand_cached:.2f}"
            rows.append((machine.name, name, *(f"{1e3 * curve.at(rows):.1f}" for rows in SHOWN_ROWS), *extras))
    columns = ["machine", "ranks", *map(str, SHOWN_ROWS), "one more sequence", "1000 more cached tokens"]
    return markdown_table(columns, rows, 2)


def _table_of_speeds(speeds: Speeds, by_stream: bool) -> str:
    rows = [
        (streams, *(_number(found[name] / (streams if by_stream else 1)) for name in SYSTEMS))
        for streams, found in speeds.items()
    ]
    return markdown_table(["streams", *SYSTEMS], rows)


def _table_of_elastic(speeds: Speeds, ranks: int) -> str:
    others = (ONE_RANK, LP, SERVERS, "TP")
    rows = [
        (streams, elastic_size(ranks, streams), *(f"{found[ELASTIC] / found[name]:.2f}x" for name in others))
        for streams, found in speeds.items()
    ]
    return markdown_table(["streams", "ranks of a group", *(f"over {name}" for name in others)], rows)


def _number(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


def _table_of_steps(steps: Sequence[Speed]) -> str:
    rows = [
        (
            one.streams,
            one.system,
            f"{one.tokens_per_step:.2f}",
            f"{one.rows / one.steps:.1f}",
            f"{one.largest / one.steps:.1f}",
            f"{1e3 * one.model_s / one.steps:.1f}",
            f"{1e3 * one.host_s / one.steps:.2f}",
        )
        for one in steps
    ]
    columns = ["streams", "system", "tokens/step of a stream", "rows, all ranks", "rows, largest rank"]
    return markdown_table([*columns, "PROJECTED ms/step", "host, ms/step"], rows, 2)


def plot(speeds: Mapping[str, Speeds], ranks: int) -> Figure:
    """PROJECTED tokens per second of all streams by their number, a panel for each machine."""
    figure, panels = make_axes(len(speeds), width=3.2 * max(2, len(speeds)), shares_y=False)
    for axes, (machine, found) in zip(panels, speeds.items(), strict=True):
        for name, colour, marker in zip(PLOTTED, COLOURS, MARKERS):
            axes.plot(list(found), [one[name] for one in found.values()], color=colour, marker=marker, label=name)
        axes.set_title(f"PROJECTED: {ranks} ranks\n{machine}", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(list(found), [str(streams) for streams in found])
        axes.set_xlabel("streams")
    panels[0].set_ylabel("tokens/s of all streams")
    panels[0].legend()
    return figure
