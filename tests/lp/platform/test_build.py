"""Libraries that are compiled while the program does something else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lp.platform import build
from lp.platform.build import CannotBuild, Source

# Compiles nothing, but notes each source, and waits before that of C++ "slow" until there is a file "go_on", but for a
# minute at most.
COMPILER = """#!/bin/sh
for word; do case $before in -o) out=$word ;; esac; case $word in *.cpp) source=$word ;; esac; before=$word; done
text=$(cat $source)
echo "$text" >> {folder}/began
tries=0
while [ "$text" = slow ] && [ ! -e {folder}/go_on ] && [ $((tries += 1)) -lt 6000 ]; do sleep 0.01; done
[ "$text" != wrong ] || {{ echo "error: wrong" >&2; exit 1; }}
echo "$text" > $out
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A compiler that gives the texts that it began to compile, in their order."""
    own = tmp_path / "compiler"
    own.write_text(COMPILER.format(folder=tmp_path))
    own.chmod(0o700)
    monkeypatch.setenv("CXX", str(own))
    began = tmp_path / "began"
    return lambda: began.read_text().split() if began.exists() else []


def of(*texts: str) -> list[Source]:
    return [Source(text, "test", text, Path("no headers"), ()) for text in texts]


def await_texts(compiler: Callable[[], list[str]], expected: list[str]) -> None:
    end = time.monotonic() + 60
    while compiler() != expected:
        assert time.monotonic() < end, compiler()
        time.sleep(0.01)


def test_what_waits_in_the_background_is_compiled_at_once(compiler: Callable[[], list[str]], tmp_path: Path) -> None:
    build.begin(of("slow", "next"), tmp_path)
    build.begin(of("slow", "last"), tmp_path)
    await_texts(compiler, ["slow"])
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build.build, of("next", "slow"), tmp_path, "once")
        await_texts(compiler, ["slow", "next"])
        assert not built.done()
        (tmp_path / "go_on").touch()
        assert [library.read_text().strip() for library in built.result()] == ["next", "slow"]
    await_texts(compiler, ["slow", "next", "last"])
    (library,) = build.build(of("last"), tmp_path, "once")
    assert library.read_text() == "last\n"
    assert compiler() == ["slow", "next", "last"], "each is compiled once"


def test_what_fails_in_the_background_is_an_error_where_it_is_needed(
    compiler: Callable[[], list[str]], tmp_path: Path
) -> None:
    build.begin(of("wrong", "right"), tmp_path)
    await_texts(compiler, ["wrong", "right"])
    with pytest.raises(CannotBuild, match="error: wrong"):
        build.build(of("wrong"), tmp_path, "once")
