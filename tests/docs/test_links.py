"""Every link of the documents leads somewhere, and every file that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.links import ROOT, anchors, broken_links, faults

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "deploy" / "README.md",
    ROOT / "demo" / "python-11m" / "README.md",
]
LOG = sorted(page for page in (ROOT / "docs" / "log").glob("*.md") if page.name != "index.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_a_document_names_what_exists(document: Path):
    text = document.read_text(encoding="utf-8")
    found = broken_links(text, document.parent) if document in LOG else faults(text, document.parent)
    assert [*found] == []  # the log speaks of the files of its day


@pytest.mark.parametrize(
    "text",
    [
        "[a guide](docs/guide.md)",
        "![a picture](docs/pictures/missing.svg)",
        "[a section](docs/design.md#no-such-section)",
        "[a section](#no-such-section)",
        "the loop is in `lp/loop.py`",
        "```\nEngine.step      lp/loop.py     the loop\n```",
        "the programs (`launch/no_such_*.py`)",
        "results lie in benchmarks/readings/",
        "versions are pinned in `versions.txt`",
    ],
)
def test_what_is_missing_is_found(text: str):
    assert len(faults(text, ROOT)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[a guide](docs/design.md#one-idea), [the paper](https://arxiv.org/abs/2402.02057)",
        "# A title\n[up](#a-title), `lp/engine/engine.py`, `launch/ser*.py`, `benchmarks/results/`",
        "`/v1/completions`, tokens/s, and/or, https://docs.ray.io/docs/none.html, /opt/lp/none.py, `constraints.txt`",
    ],
)
def test_what_exists_passes(text: str):
    assert faults(text, ROOT) == []


def test_anchors_are_those_of_github():
    assert anchors("## `auto`: how fast, at T=0.8? (2026-11-21)\n```\n# no heading\n```") == {
        "auto-how-fast-at-t08-2026-11-21"
    }


@pytest.mark.parametrize("page", LOG, ids=lambda page: page.name)
def test_the_log_begins_with_the_conclusions_of_all_its_entries(page: Path):
    log = page.read_text(encoding="utf-8")
    entries = [line.removeprefix("## ") for line in log.splitlines() if line.startswith("## ")]
    concluded = re.findall(r"^- \[(.+)\]\(#\S+\): \S.+\.$", log.partition("\n## ")[0], re.MULTILINE)
    assert entries and concluded == entries
