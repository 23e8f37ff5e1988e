"""How many files a prompt passes between HTTP and the engine and back: what a reader has to follow."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lp.model.checkpoint import Checkpoint
from tests.launch.server.harness import serving

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("lp", "parallel", "launch"))
MOST_FILES = 62
# uvicorn's event loop wakes up in it now and then, whether there is a prompt or not.
NOT_ON_THE_WAY = {"launch/server/run.py"}


def test_a_prompt_passes_few_files(checkpoint: Checkpoint) -> None:
    """Counts the files of which a function is called, with default settings on one rank."""
    passed: set[str] = set()
    is_counting = threading.Event()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_counting.is_set() and frame.f_code.co_filename.startswith(PACKAGES):
            passed.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))

    threading.setprofile(note)  # for the threads of the server, which start now
    try:
        with serving(checkpoint) as running:
            for _ in range(2):  # what happens once is not on the way of every prompt
                passed.clear()
                is_counting.set()
                running.assert_serves()
                is_counting.clear()
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    assert {"launch/server/generation.py", "lp/engine/engine.py", "lp/model/causal.py"} <= passed
    assert len(passed - NOT_ON_THE_WAY) <= MOST_FILES, "\n".join(sorted(passed))
