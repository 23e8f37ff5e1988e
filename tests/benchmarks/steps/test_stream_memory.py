"""Many streams at once stay within the bound of keys and values, whether all of them fit or some wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.steps import stream_memory
from lp.kv_cache.cache import PAGE
from tests.benchmarks.results import read

STREAMS, TOKENS = 16, 330
# KVBudget for this many tokens and the rows of a step: 330 + 128.
PAGES = STREAMS * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process's memory")
@pytest.mark.slow
def test_streams_stay_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = str(checkpoint_folder("llama"))
    arguments = ["--model", folder, "--dtype", "float32", "--streams", f"{STREAMS}", "--tokens", f"{TOKENS}"]
    monkeypatch.setattr(sys, "argv", ["stream_memory", *arguments, "--max-new-tokens", "30", "--output", str(tmp_path)])
    stream_memory.main()
    table, data = read(tmp_path, "stream_memory-*")
    whole, half = data["found"]
    assert (whole["bound"], half["bound"]) == (PAGES, PAGES // 2) and "most in use" in table
    for found in (whole, half):
        assert 0 < found["cache_bytes"] <= found["pages"] * found["page_bytes"] <= found["bound"] * found["page_bytes"]
    assert found["page_bytes"] == PAGE * 3 * 2 * (8 + 8) * 4  # of the tiny Llama
    assert (whole["at_once"], whole["preemptions"]) == (STREAMS, 0) and half["at_once"] < STREAMS
    assert whole["checksum"] == half["checksum"]
