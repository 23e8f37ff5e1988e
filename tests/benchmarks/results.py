"""Reads the files that a benchmark has written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree


def read(folder: Path, pattern: str) -> tuple[str, dict]:
    """The only table whose name fits the pattern, and its figures."""
    (table,) = folder.glob(f"{pattern}.md")
    return table.read_text(), json.loads(table.with_suffix(".json").read_text())


def read_plot(folder: Path, pattern: str) -> str:
    """The text in the only plot whose name fits the pattern."""
    (plot,) = folder.glob(f"{pattern}.svg")
    return " ".join(ElementTree.parse(plot).getroot().itertext())
