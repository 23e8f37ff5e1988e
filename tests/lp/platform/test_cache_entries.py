"""Entries of the cache: found, noted as used, and removed only while nobody uses or makes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lp.platform import disk_cache
from lp.platform.disk_cache import find_entries, open_entry, remove, trim, use

DAY = 86400.0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(disk_cache.BOUND_VARIABLE, raising=False)
    monkeypatch.setattr(disk_cache, "_held", {})
    return tmp_path / "cache"


def add(kind: str, name: str, num_bytes: int, days_ago: float) -> Path:
    """A folder with one file, last changed so many days ago."""
    folder = disk_cache.folder(f"{kind}/{name}")
    assert folder is not None
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(b"x" * num_bytes)
    when = time.time() - days_ago * DAY
    os.utime(folder, (when, when))
    return folder


def names() -> list[str]:
    return [entry.path.name for entry in find_entries()]


def test_entries_are_found_by_last_use(root: Path) -> None:
    add("compiled", "code", 100, days_ago=3)
    unpacked = add("gguf", "digest", 2000, days_ago=5)
    times = root / "step-times" / "times.json"
    times.parent.mkdir()
    times.write_text("12345")
    os.utime(times, (time.time() - 60, time.time() - 60))
    first, second, third = find_entries()
    assert [first.path.name, second.path.name, third.path.name] == ["digest", "code", "times.json"]
    assert (first.kind, first.title, first.num_bytes) == ("gguf", "inner", 2000)
    assert (third.kind, third.title, third.num_bytes) == ("step-times", "times.json", 5)
    use(unpacked)
    assert names() == ["code", "times.json", "digest"]


def test_what_is_being_written_is_no_entry_until_its_writer_is_surely_gone(root: Path) -> None:
    add("compiled", "tmp1234", 10, days_ago=0)
    add("compiled", "tmp5678", 10, days_ago=2)
    (root / "compiled" / "code.lock").touch()
    (root / "compiled" / "code.used").touch()
    assert names() == ["tmp5678"]


def test_an_entry_that_this_process_uses_stays(root: Path) -> None:
    used = open_entry("gguf", "used")
    assert used is not None and used.is_dir()
    (entry,) = find_entries()
    assert not remove(entry) and used.is_dir()


def test_an_entry_that_another_process_uses_stays_until_that_ends(root: Path) -> None:
    folder = add("gguf", "digest", 10, days_ago=1)
    uses = f"from lp.platform.disk_cache import use\nuse(Path({str(folder)!r}))"
    program = f"from pathlib import Path\n{uses}\nprint(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout and user.stdin
        user.stdout.readline()
        (entry,) = find_entries()
        assert not remove(entry) and folder.is_dir()
        user.communicate(b"\n")
    assert remove(entry) and not folder.exists()
    assert find_entries() == []


def test_an_entry_that_is_being_made_stays(root: Path) -> None:
    folder = add("gguf", "digest", 10, days_ago=1)
    (entry,) = find_entries()
    with disk_cache.locked(folder, "unpack"):
        assert not remove(entry)
    assert folder.is_dir() and remove(entry)


def test_a_removed_entry_can_be_made_again(root: Path) -> None:
    add("packages", "one", 10, days_ago=1)
    assert remove(find_entries()[0])
    again = open_entry("packages", "one")
    assert again is not None and again.is_dir() and names() == ["one"]


def test_the_least_recently_used_go_until_the_rest_fits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for days_ago in (1, 2, 3, 4):
        add("compiled", f"{days_ago}", 1000, days_ago)
    use(root / "compiled" / "4")
    assert trim() == [] and len(names()) == 4
    monkeypatch.setenv(disk_cache.BOUND_VARIABLE, "0.0000025")
    assert [entry.path.name for entry in trim()] == ["3", "2"]
    assert names() == ["1", "4"]


def test_entries_in_use_are_passed_over(root: Path) -> None:
    kept = add("gguf", "old", 1000, days_ago=9)
    use(kept)
    os.utime(f"{kept}.used", (0, 0))
    add("gguf", "new", 1000, days_ago=1)
    assert [entry.path.name for entry in trim(keep_bytes=500)] == ["new"]
    assert names() == ["old"]


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf"])
def test_a_bound_that_is_no_number_is_ignored(
    given: str, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(disk_cache.BOUND_VARIABLE, given)
    assert disk_cache.most_bytes() == 20_000_000_000
    assert f"{disk_cache.BOUND_VARIABLE}={given!r} is ignored" in caplog.text


def test_what_cannot_be_removed_is_named_and_does_no_harm(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add("gguf", "stuck", 1000, days_ago=2)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk_cache.shutil, "rmtree", refuse)
    assert trim(keep_bytes=0) == []
    assert "stuck cannot be removed from the cache: Permission denied" in caplog.text


def test_a_cache_that_cannot_be_made_has_no_entries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.VARIABLE, "/dev/null/inside")
    assert find_entries() == [] and trim(0) == [] and open_entry("gguf", "x") is None
    use(root / "nowhere" / "x")
