"""The list of measured results, from the files in benchmarks/results, with their dates and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.result_pages import RESULTS, read_run

_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """One page of results. date, machine: empty if the file does not say."""

    file: Path
    title: str
    date: str
    machine: str

    @property
    def name(self) -> str:
        """The title, and what the file's name adds to it: files of one command have one title."""
        return f"{self.title} ({self.file.stem})" if self.title.startswith("Under load") else self.title

    @property
    def has_plot(self) -> bool:
        return self.file.with_suffix(".svg").exists()


def all_results() -> str:
    """A table of all results, and their plots. The links are those of a page in docs/."""
    found = [read(file) for file in sorted(RESULTS.glob("*.md"))]
    rows = [
        f"| [{one.name}](../../benchmarks/results/{one.file.name}) | {_whole(one.date)} | {one.machine} |"
        for one in found
    ]
    parts = ["## All results", "", "| result | date | machine |", "|---|---|---|", *rows, "", "## Plots", ""]
    for one in found:
        if one.has_plot:
            name = one.file.with_suffix(".svg").name
            parts += [f"### {one.name}", "", f"{one.date} {one.machine}".strip(), ""]
            parts += [f"![{one.name}](../../benchmarks/results/{name})", ""]
    return "\n".join(parts)


def read(file: Path) -> Result:
    title = _TITLE.search(file.read_text(encoding="utf-8"))
    run = read_run(file)
    return Result(file, title.group(1) if title else file.stem, run.get("date", "")[:10], run.get("cpu", ""))


def _whole(date: str) -> str:
    """A date that no line break divides."""
    return date.replace("-", "\u2011")
