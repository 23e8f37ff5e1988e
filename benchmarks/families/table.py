"""The table of families in docs/reference/models.md, which is its only place: rows are read from it and put into it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path

import torch
import transformers

from benchmarks.families.check import FamilyResult
from benchmarks.shared.report import markdown_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"
COLUMNS = ("family", "decoding", "forward", "tp 2", "pp 2", "int8", "what is in the way")
_PLACE = re.compile(
    r"(?<=^<!-- families: begin \(python -m benchmarks\.families\) -->\n).*?(?=^<!-- families: end -->$)", re.M | re.S
)
_ROW = re.compile(r"^\| `([^`]+)` .*\|$", re.M)
# What the words of the column `decoding` mean, in the order in which they are counted.
KINDS = {
    "trees": "all methods give the tokens of `generate`",
    "plain": "one token a step, with the tokens of `generate`",
    "refused": "not loaded, with this message",
    "wrong": "other tokens than `generate`",
    "crash": "an error that is no message for a user",
    "none": "transformers itself does not make or run a tiny model of text",
    "untried": "not tried yet",
}


def read_results(page: Path) -> dict[str, FamilyResult]:
    """The results in a page's table, by family."""
    found = {}
    _, _, table = page.read_text(encoding="utf-8").partition(f"\n| {COLUMNS[0]} ")
    for row in _ROW.finditer(table):
        name, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", row[0].strip("|")))
        found[name.strip("`")] = FamilyResult(name.strip("`"), *(cell.replace("\\|", "|") for cell in cells))
    return found


def write_results(page: Path, results: Mapping[str, FamilyResult]) -> None:
    """Puts results in the place of a page's table. Raises ValueError if it has no place for them."""
    changed, number = _PLACE.subn(lambda _: f"\n{describe(results)}\n\n", page.read_text(encoding="utf-8"))
    if number != 1:
        raise ValueError(f"{page.name} has {number} places for families instead of one")
    page.write_text(changed, encoding="utf-8")


def describe(results: Mapping[str, FamilyResult]) -> str:
    """The table, after the number of families of each kind."""
    counts = Counter(result.decoding for result in results.values())
    numbers = [(f"`{kind}`", counts[kind], meaning) for kind, meaning in KINDS.items() if counts[kind]]
    made = f"Made with transformers {transformers.__version__} and torch {torch.__version__.partition('+')[0]}."
    rows = [
        [f"`{name}`", *(cell.replace("|", "\\|") for cell in astuple(results[name])[1:])] for name in sorted(results)
    ]
    kinds = markdown_table(("decoding", "families", "meaning"), [(kind, str(n), what) for kind, n, what in numbers], 3)
    return "\n\n".join([made, kinds, markdown_table(COLUMNS, rows, num_text=len(COLUMNS))])
