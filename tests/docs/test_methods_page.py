"""docs/concepts/methods.md lists every method, and its figures are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.shared.result_pages import read_tables
from docs.website import methods
from lp.methods.registry import METHODS
from tests.docs.links import ROOT


def listed() -> list[str]:
    """The methods of the page's first table, in its order."""
    section = methods.PAGE.read_text(encoding="utf-8").split("## The list")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", section, re.MULTILINE)


def test_the_page_lists_every_method_once() -> None:
    assert sorted(listed()) == sorted(METHODS)


def test_the_page_has_the_figures_of_the_results() -> None:
    """If this fails, run `python -m docs.website.methods`."""
    page = methods.PAGE.read_text(encoding="utf-8")
    assert methods.with_figures(page) == page
    assert "| `autoregressive` " in page.split("## Side by side")[1]


def test_every_measured_method_is_one_of_the_list() -> None:
    files = sorted(methods.RESULTS.glob("methods-*.md"))
    assert files
    for file in files:
        names = {row["method"].partition(",")[0] for row in read_tables(file)[0]} - {"transformers generate"}
        assert names <= set(METHODS)


def test_figures_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = methods.PAGE.read_text(encoding="utf-8")
    (file, *_) = sorted(methods.RESULTS.glob("methods-*.md"))
    (tmp_path / file.name).write_text(file.read_text(encoding="utf-8").replace("19.0", "19.1"))
    monkeypatch.setattr(methods, "RESULTS", tmp_path)
    assert methods.with_figures(page) != page


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places"):
        methods.with_figures("# Every method\n")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/usage.md", "docs/concepts/index.md"])
def test_other_pages_lead_to_it(page: str) -> None:
    assert "methods.md" in (ROOT / page).read_text(encoding="utf-8")
