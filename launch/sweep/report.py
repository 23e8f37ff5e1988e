"""Reports the comparison: two tables, on the terminal and in Markdown, and one HTML file that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tabulate import tabulate

from launch.sweep.records import Point, Run
from launch.sweep.summary import Spread, Summary

SPEED = ("point", "tokens/s", "least-most", "over AR", "over generate", "tokens/step", "rows/step", "same texts")
COST = ("point", "comm. ms/step", "share", "collectives/step", "bytes/step", "weights MB", "cache MB", "peak MB")
SPEED_UP = (
    "Over AR, over generate: tokens per second over those of this project's autoregressive decoding on one rank, and "
    "over those of transformers' generate. Each ratio is taken within one round; the table shows medians over the "
    "rounds. Communication includes waiting. Figures of ranks are those of the rank with the most."
)


def speed_cells(summary: Summary) -> list[str]:
    """Returns a line of the first table. A dash stands for what was not measured."""
    speed = summary.tokens_per_s
    return [
        _name(summary),
        _number(speed.median if speed else None, 0),
        f"{speed.least:.0f}-{speed.most:.0f}" if speed else "-",
        _number(summary.over_autoregressive, 2),
        _number(summary.over_generate, 2),
        _number(summary.tokens_per_step, 2),
        _number(summary.rows_per_step, 0),
        "-" if summary.same_texts is None else f"{summary.same_texts}/{summary.num_texts}",
    ]


def cost_cells(summary: Summary) -> list[str]:
    """Returns a line of the second table: what a rank sends, waits for and stores."""
    share = summary.communication_share
    megabytes = [
        None if num_bytes is None else num_bytes / 1e6
        for num_bytes in (summary.weight_bytes, summary.cache_bytes, summary.peak_bytes)
    ]
    return [
        _name(summary),
        _number(summary.communication_ms_per_step, 2),
        "-" if share is None else f"{share:.0%}",
        _number(summary.collectives_per_step, 1),
        _number(summary.bytes_per_step, 0),
        *(_number(value, 1) for value in megabytes),
    ]


TABLES = ((SPEED, speed_cells), (COST, cost_cells))


def notes(summaries: Sequence[Summary]) -> list[str]:
    """Returns what a reader of the tables must know."""
    said = [SPEED_UP]
    if any(summary.mode == "pp" and summary.concurrency == 1 for summary in summaries):
        said.append(
            "With one request in flight, pipeline stages (pp) wait for one another; concurrency=2 lets them overlap."
        )
    if any(summary.oversubscribed for summary in summaries):
        said.append("* There were too few cores for the ranks, so their times mean little.")
    said += [f"failed: {summary.name}: {summary.error}" for summary in summaries if summary.error]
    return said


def print_table(summaries: Sequence[Summary], console: Console) -> None:
    for columns, cells in TABLES:
        table = Table(box=SIMPLE, collapse_padding=True, pad_edge=False)
        for number, column in enumerate(columns):
            heading = column.replace(" ", "\n", 1).replace("/", "/\n", 1) if number else column
            table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
        for summary in summaries:
            table.add_row(*cells(summary))
        console.print(table)
    for note in notes(summaries):
        console.print(note, style="dim", markup=False, highlight=False)


def markdown(summaries: Sequence[Summary]) -> str:
    parts = []
    for columns, cells in TABLES:
        rows = [cells(summary) for summary in summaries]
        aligned = ["left", *["right"] * (len(columns) - 1)]
        parts.append(tabulate(rows, headers=columns, tablefmt="pipe", colalign=aligned, disable_numparse=True))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(summaries))]) + "\n"


def _name(summary: Summary) -> str:
    return summary.name + (" *" if summary.oversubscribed else "")


def _number(value: float | Spread | None, digits: int) -> str:
    """Formats a number; a spread is shown by its median."""
    value = value.median if isinstance(value, Spread) else value
    return "-" if value is None else f"{value:.{digits}f}"


TEMPLATE = "report.html.j2"


def write_report(
    path: Path, points: Sequence[Point], runs: Sequence[Run], summaries: Sequence[Summary], title: str
) -> None:
    """Writes the file in one step. Raises OSError if that fails, ImportError without matplotlib."""
    from launch.sweep.plots import all_plots  # late, because matplotlib takes a second

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(enabled_extensions=("j2",)),
        undefined=StrictUndefined,
    )
    names = {point.key: point.name for point in points}
    facts = describe(points, runs)
    text = environment.get_template(TEMPLATE).render(
        title=title,
        facts=facts,
        tables=[(columns, [cells(summary) for summary in summaries]) for columns, cells in TABLES],
        notes=notes(summaries),
        caption=_caption(facts),
        plots=all_plots(summaries),
        measurements=[(names.get(run.point, run.point), run) for run in runs],
    )
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def describe(points: Sequence[Point], runs: Sequence[Run]) -> dict[str, Any]:
    """Returns what was measured, and on what hardware, for the head of the report.

    Files appear by name alone, because a report may be published and their folders are private.
    """
    hardware = next((run.hardware for run in runs if run.hardware), {})
    facts = {key: value for key, value in hardware.items() if value is not None}
    settings = [point.settings for point in points]
    facts["model"] = _distinct(f"{PurePath(s['model']['path']).name}, dtype {s['model']['dtype']}" for s in settings)
    facts["workload"] = _distinct(_workload(s["workload"]) for s in settings)
    facts["rounds"] = len({run.round for run in runs})
    facts["cores per rank"] = _distinct(str(s["cores_per_rank"]) for s in settings)
    return facts


def _workload(settings: dict[str, Any]) -> str:
    limit = "all" if settings["limit"] is None else f"first {settings['limit']}"
    return f"{settings['name']}, {limit} prompts, {settings['max_new_tokens']} new tokens"


def _distinct(values: Any) -> str:
    return "; ".join(dict.fromkeys(values))


def _caption(facts: dict[str, Any]) -> str:
    """Returns the text above the plots."""
    where = facts.get("gpu") or facts.get("cpu", "unknown hardware")
    return (
        f"Measured on {where}, {facts['cores per rank']} core(s) per rank, {facts['rounds']} round(s). Bars show "
        "medians, whiskers the least and the most. Baselines are grey."
    )
