"""The site is built without a warning, its links lead somewhere, and faults are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.website.html_links import find_faults
from tests.docs.links import ROOT


@pytest.mark.exhaustive
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere():
    """`make docs` builds and checks it in continuous integration."""
    pytest.importorskip("zensical")
    done = subprocess.run([sys.executable, "-m", "docs.website"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert find_faults(ROOT / "site") == []
    for page in ("index.html", "reference/settings/index.html", "reference/python/index.html"):
        assert (ROOT / "site" / page).stat().st_size > 10_000
    assert 'id="lp.engine.engine.Engine"' in (ROOT / "site" / "reference" / "python" / "index.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="missing/">x</a>', "leads nowhere"),
        ('<a href="other.html#no">x</a>', "names no heading"),
        ('<img src="missing.svg">', "leads nowhere"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="https://example.org/x.css">', "loads https://example.org/x.css"),
    ],
)
def test_what_is_wrong_is_found(html: str, fault: str, tmp_path: Path):
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    (tmp_path / "other.html").write_text('<h1 id="yes">x</h1>', encoding="utf-8")
    (found,) = find_faults(tmp_path)
    assert fault in found


def test_what_is_right_passes(tmp_path: Path):
    html = (
        '<a href="other.html#yes">x</a><a href="https://example.org">x</a><link rel="canonical" href="https://x.org">'
    )
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    (tmp_path / "other.html").write_text('<h1 id="yes">x</h1><a href=".">up</a>', encoding="utf-8")
    assert find_faults(tmp_path) == []
