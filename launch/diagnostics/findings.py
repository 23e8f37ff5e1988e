"""What a checkup has found, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    section, name: what it is about. text: what a person reads. value: the same as a JSON value. advice: what the user
    can do to have it better; empty if nothing. is_broken: whether something that should work does not.
    """

    section: str
    name: str
    text: str
    value: Any = None
    advice: str = ""
    is_broken: bool = False


def to_json(version: str, findings: Sequence[Finding]) -> str:
    """One JSON object: by section and name the value, with the advice and what is broken in lists of their own."""
    sections: dict[str, dict[str, Any]] = {}
    for finding in findings:
        value = finding.text if finding.value is None else finding.value
        sections.setdefault(finding.section, {})[finding.name] = value
    broken = [f"{finding.name}: {finding.text}" for finding in findings if finding.is_broken]
    advice = [finding.advice for finding in findings if finding.advice]
    return json.dumps({"version": version, **sections, "advice": advice, "broken": broken}, indent=2)


def show(console: Console, version: str, findings: Sequence[Finding]) -> None:
    console.print(f"lookahead-parallel {version}", highlight=False)
    for section, group in groupby(findings, lambda finding: finding.section):
        console.print(f"\n[bold]{section}[/bold]")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for finding in group:
            style = "red" if finding.is_broken else "yellow" if finding.advice else ""
            table.add_row(f"  {finding.name}", finding.text, style=style)
        console.print(table, highlight=False, markup=False)
    if advice := [finding.advice for finding in findings if finding.advice]:
        console.print("\n[bold]to be faster, or to have more[/bold]")
        for line in advice:
            console.print(f"  - {line}", highlight=False, markup=False)
    if broken := [finding.name for finding in findings if finding.is_broken]:
        console.print(f"\nbroken: {', '.join(broken)}", style="red", highlight=False, markup=False)
