"""Waits for a server that runs as a process of its own."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the server's log names as soon as it listens. Raises AssertionError if it ends before."""
    while not (found := re.search(r"^serving .* on (http\S+)$", log.read_text(), re.MULTILINE)):
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return found[1]
