"""Writes the report: one HTML file that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from launch.sweep.records import Point, Run
from launch.sweep.report.summary import Summary
from launch.sweep.report.table import TABLES, notes

TEMPLATE = "report.html.j2"


def write_report(
    path: Path, points: Sequence[Point], runs: Sequence[Run], summaries: Sequence[Summary], title: str
) -> None:
    """Writes the file in one step. Raises OSError if that fails, ImportError without matplotlib."""
    from launch.sweep.report.plots import all_plots  # late, because matplotlib takes a second

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
