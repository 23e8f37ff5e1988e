"""launch/cache.py lists what the cache holds and removes what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import cache
from lp.platform import disk_cache
from lp.platform.disk_cache import use


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with an entry of each of three kinds, of one megabyte each."""
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path))
    for kind in ("compiled", "gguf", "packages"):
        (tmp_path / kind / f"{kind}-entry").mkdir(parents=True)
        (tmp_path / kind / f"{kind}-entry" / "data").write_bytes(bytes(1_000_000))
    return tmp_path


def run(*arguments: str) -> int:
    return cache.main(arguments)


def kinds(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("*/*-entry")}


def test_entries_are_listed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    out = capfd.readouterr().out
    assert all(f"{kind}-entry" in out for kind in ("compiled", "gguf", "packages"))
    assert "3 entries, 0.00 GB of at most 20 GB (LOOKAHEAD_CACHE_GB)" in out
    assert len(kinds(root)) == 3


def test_a_kind_or_all_is_cleared(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("clear=gguf") == 0
    assert kinds(root) == {"compiled", "packages"}
    assert run("clear=all") == 0
    assert kinds(root) == set()
    assert "0 entries" in capfd.readouterr().out


def test_the_cache_is_cut_down_to_a_size(root: Path) -> None:
    assert run("keep_gb=0.0021") == 0
    assert len(kinds(root)) == 2


def test_what_is_in_use_stays_and_is_said(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    use(root / "packages" / "packages-entry")
    assert run("clear=all") == 1
    assert kinds(root) == {"packages"}
    assert "1 of 3 entries are in use and stay" in capfd.readouterr().err


@pytest.mark.parametrize("argument", ["keep_gb=-1", "keep_gb=nan", "clear=everything"])
def test_other_values_are_refused(argument: str, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(argument) == 2
    assert len(kinds(root)) == 3
    assert capfd.readouterr().err.startswith("error: ")


def test_help_names_the_settings(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capfd.readouterr().out
    assert "clear=gguf" in out and "keep_gb: null" in out
