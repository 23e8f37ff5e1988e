"""Cache files are written whole, read if they are sound, and do no harm if they cannot be kept."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from lp.platform import disk_cache
from lp.platform.disk_cache import VARIABLE, digest, folder, read_json, write_json


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"rows": [1, 2]})
    write_json(path, {"rows": [3]})
    assert read_json(path) == {"rows": [3]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_missing_file_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_json(tmp_path / "none.json") is None
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b'{"rows": [1', b"\xff\xfe\x00", b"nonsense"])
def test_a_corrupt_file_is_ignored_and_logged(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "corrupt.json"
    path.write_bytes(content)
    assert read_json(path) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(path) in caplog.text and "is ignored" in caplog.text


def test_a_folder_in_place_of_a_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_json(tmp_path) is None
    assert "is ignored" in caplog.text


def test_a_failed_write_is_logged_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "taken.json"
    taken.mkdir()
    write_json(taken, 1)
    write_json(tmp_path / "missing" / "a.json", 1)
    assert caplog.text.count("is not kept for later runs") == 2
    assert list(tmp_path.iterdir()) == [taken]


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, [2, object()])
    assert read_json(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    told = disk_cache.why(full, tmp_path / "missing" / "file")
    assert re.fullmatch(r"No space left on device \(the disk at (/\S*), [\d,]+ MB free\)", told)
    assert disk_cache.why(OSError(errno.EACCES, "Permission denied"), tmp_path) == "Permission denied"


def test_the_folder_is_made_for_its_user_alone(root: Path) -> None:
    made = folder("step-times")
    assert made == root / "step-times" and made.is_dir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert folder("step-times") == made


def test_without_the_variable_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    assert folder("compiled") == tmp_path / "lookahead-parallel" / "compiled"


@pytest.mark.parametrize("value", ["/dev/null/inside", "~nobody-has-this-name/cache"])
def test_a_folder_that_cannot_be_made_is_logged(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert folder("step-times") is None
    assert "nothing is kept for later runs" in caplog.text and value in caplog.text


def test_a_digest_depends_on_all_facts_and_not_on_their_order() -> None:
    assert digest({"a": 1, "b": Path("x")}) == digest({"b": Path("x"), "a": 1})
    assert len({digest(facts) for facts in (["a", 1], ["a", 2], ["a", "1"], [1, "a"])}) == 4
