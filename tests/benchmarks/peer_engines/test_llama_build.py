"""Building llama.cpp: what is missing or fails is told in one line, and what is built is built once.

cmake and the package index are stand-ins.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from benchmarks.peer_engines import llama_build
from benchmarks.peer_engines.base import Unavailable
from lp.platform import disk_cache

# Stands in for cmake: it counts its calls, shows progress, and makes a program.
CMAKE = """#!/bin/sh
echo call >> "{calls}"
if [ "$1" = "--build" ]; then
    echo "[1/2] Building a"; echo "[2/2] Linking b"; mkdir -p "$2/bin"; touch "$2/bin/llama-bench"
fi
exit {code}
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs; empty at first. The cache is empty too, and there is no package index."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def add_tool(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def add_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str = "vendor/llama.cpp/CMakeLists.txt"
) -> None:
    """Puts an archive where the download would put it."""
    name = f"llama_cpp_python-{llama_build.VERSION}"
    (tmp_path / "file").write_text("project(llama)")
    archive = tmp_path / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "file", f"{name}/{content}")
    monkeypatch.setattr(llama_build, "_download", lambda folder: archive)
    monkeypatch.setattr(llama_build, "SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())


def test_it_is_built_once(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    add_tool(tools, "cmake", CMAKE.format(calls=calls, code=0))
    add_tool(tools, "c++")
    add_archive(tmp_path, monkeypatch)
    programs = llama_build.build_programs(1)
    assert (programs / "llama-bench").is_file()
    assert llama_build.build_programs(1) == programs
    assert calls.read_text().split() == ["call", "call"]  # to configure and to build


@pytest.mark.parametrize(
    ("present", "reason"),
    [([], "there is no cmake to build it with"), (["cmake"], "there is no C.. compiler to build it with")],
    ids=str,
)
def test_missing_tools_are_told_before_anything_is_downloaded(present: list[str], reason: str, tools: Path) -> None:
    for name in present:
        add_tool(tools, name)
    with pytest.raises(Unavailable, match=reason):
        llama_build.build_programs(1)


def test_a_missing_network_is_told(tools: Path) -> None:
    for name in ("cmake", "g++"):
        add_tool(tools, name)
    with pytest.raises(Unavailable, match=r"llama-cpp-python==0.3.36 cannot be downloaded: ERROR: No matching"):
        llama_build.build_programs(1)
    assert not (llama_build.cache_folder() / "partial").exists()


def test_another_archive_is_refused(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cmake", "g++"):
        add_tool(tools, name)
    add_archive(tmp_path, monkeypatch, content="src/other")
    with pytest.raises(Unavailable, match=r"holds no llama_cpp_python-.*/vendor/llama.cpp/"):
        llama_build.build_programs(1)
    monkeypatch.setattr(llama_build, "SHA256", "0" * 64)
    with pytest.raises(Unavailable, match="is not the file that was published"):
        llama_build.build_programs(1)


def test_a_build_that_fails_is_told_and_tried_again(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    add_tool(tools, "c++")
    add_tool(tools, "cmake", "#!/bin/sh\necho start\necho 'a.cpp:1: error: no such header'\nexit 3\n")
    add_archive(tmp_path, monkeypatch)
    with pytest.raises(Unavailable, match=r"`cmake -S` failed, see configure.log .*: a.cpp:1: error: no such header"):
        llama_build.build_programs(1)
    add_tool(tools, "cmake", CMAKE.format(calls=tmp_path / "calls", code=0))
    assert (llama_build.build_programs(1) / "llama-bench").is_file()


def test_a_cache_that_cannot_be_written_is_told(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.VARIABLE, "/dev/null/cache")
    with pytest.raises(Unavailable, match="the cache folder cannot be written; let LOOKAHEAD_CACHE name another"):
        llama_build.build_programs(1)
