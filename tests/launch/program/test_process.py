"""How a program prepares its own process."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_frozen_objects_are_released_at_the_end() -> None:
    program = """
import atexit, gc
from launch.program import process

atexit.register(lambda: print(gc.get_freeze_count()))  # runs last
process.freeze_heap()
print(gc.get_freeze_count() > 1000)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["True", "0"]
