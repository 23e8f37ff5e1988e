"""Reads pages of results (benchmarks/results/*.md), which stay when the raw figures beside them are gone."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
_FACT = re.compile(r"^- (\w+): (.+)$", re.MULTILINE)

# The cells of a row by the names of its columns; of columns with one name, the first.
Row = dict[str, str]


def read_run(page: Path) -> dict[str, str]:
    """Date, machine and versions, as far as the page names them."""
    facts = page.read_text(encoding="utf-8").split("\n\n#")[0]
    return dict(_FACT.findall(facts.partition("|")[0]))


def read_tables(page: Path) -> list[list[Row]]:
    """All tables of a page, in their order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [_rows(list(group)) for is_table, group in groupby(lines, lambda line: line.startswith("|")) if is_table]


def _rows(lines: list[str]) -> list[Row]:
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(reversed([*zip(columns, row, strict=True)])) for row in rows]
