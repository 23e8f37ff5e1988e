"""Where the library cannot be had, or not on every rank, Python drafts, and says so once; texts are the same."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lp import Auto, Engine, Sampling
from lp.drafting.drafter import NativeDrafter
from lp.drafting.history import DraftHistory
from lp.drafting.simple import SimpleDrafter
from lp.platform import build, host, library
from lp.platform.disk_cache import VARIABLE
from lp.platform.library import python_alone

PROMPT = [5, 9, 5, 9, 5, 7, 30, 31, 32, 5, 9]
SAMPLED = Sampling(temperature=0.8, seed=3)


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a library that has not been asked for."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    library._load.cache_clear()
    yield tmp_path
    library._load.cache_clear()


def test_without_a_compiler_python_gives_the_same(
    nothing_kept: Path, llama: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(nothing_kept))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, "lookahead"):
        engine = Engine(llama.checkpoint)
        done = engine.generate(PROMPT, max_new_tokens=40, decode=Auto(rows=24), sampling=SAMPLED)
        Engine(llama.checkpoint)
    assert isinstance(engine.history.drafter(Auto(), PROMPT, 0.0, None), SimpleDrafter)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "drafts are made by Python code, which is slower and has fewer sources of them, and no forward is compiled: "
        "there is no C++ compiler; install g++, or let CXX name one"
    )
    monkeypatch.undo()
    library._load.cache_clear()
    if library.library() is None:
        pytest.skip("there is no C++ compiler to compare with")
    other = Engine(llama.checkpoint)
    again = other.generate(PROMPT, max_new_tokens=40, decode=Auto(rows=24), sampling=SAMPLED)
    assert isinstance(other.history.drafter(Auto(), PROMPT, 0.0, None), NativeDrafter)
    assert (again.token_ids, again.text) == (done.token_ids, done.text)
    assert done.stats.steps < 40, "there were drafts"


def test_it_is_compiled_in_the_background(nothing_kept: Path) -> None:
    host.begin()
    assert library._load.cache_info().currsize == 0
    for thread in threading.enumerate():  # of low priority, so that it takes long on a busy machine
        if thread.name == build.THREAD:
            thread.join()
    [compiled] = nothing_kept.glob("**/sha256")
    found = compiled.with_name("host.so")
    when = found.stat().st_mtime_ns
    assert library.library() is not None
    assert found.stat().st_mtime_ns == when, "it is not compiled again"


def test_a_compiler_that_fails_is_no_error(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = nothing_kept / "g++"
    fails.write_text("#!/bin/sh\necho 'host.cpp:1: error: no room' >&2\nexit 1\n")
    fails.chmod(0o700)
    monkeypatch.setattr(build, "COMPILERS", (str(fails),))
    assert library.library() is None
    assert "error: no room" in caplog.text


def test_the_compiler_is_the_one_that_CXX_names(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = nothing_kept / "own compiler"
    own.write_text('#!/bin/sh\necho "error: mine got $1" >&2\nexit 1\n')
    own.chmod(0o700)
    monkeypatch.setenv("CXX", f"'{own}' --fast")
    assert library.library() is None
    assert "error: mine got --fast" in caplog.text
    library._load.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.library() is None
    assert "CXX=no-such-compiler is not a program" in caplog.text


def test_a_disk_that_is_full_is_named(
    nothing_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = nothing_kept / "g++"
    full.write_text("#!/bin/sh\necho 'fatal error: writing: No space left on device' >&2\nexit 1\n")
    full.chmod(0o700)
    monkeypatch.setenv("CXX", str(full))
    assert library.library() is None
    assert "No space left on device (the disk at /" in caplog.text


def test_python_can_be_asked_for() -> None:
    before = library.library()
    with python_alone():
        assert library.library() is None
        assert isinstance(DraftHistory().drafter(Auto(), [1, 2], 0.0, None), SimpleDrafter)
    assert library.library() is before


def test_ranks_do_without_it_unless_all_have_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if library.library() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(library, "_is_off", False)
    library.require_on_all(lambda number: number)
    assert library.library() is not None and not caplog.records
    library.require_on_all(lambda number: min(number, 0))
    assert library.library() is None and "not every rank has a C++ compiler" in caplog.text


def test_a_program_begins_it_before_pytorch_is_imported(nothing_kept: Path) -> None:
    code = "import launch.config.early, sys; print('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n" and done.stderr == ""
    assert [*nothing_kept.glob("**/host.so")]
