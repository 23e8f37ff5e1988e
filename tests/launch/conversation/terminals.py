"""Runs launch/chat.py on a terminal of its own, as a person does: keys go in, the screen's text comes out."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.launch import commands

CTRL_C, CTRL_D, ENTER, ALT_ENTER = "\x03", "\x04", "\r", "\x1b\r"
# What the editor of a prompt writes first: pasted text is to be marked as such.
PROMPT = r"\x1b\[\?2004h"


class Terminal:
    """The master's side of a terminal. seen: all that the program has written so far."""

    def __init__(self, child: subprocess.Popen[bytes], master: int):
        self.child = child
        self.seen = ""
        self._master = master

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, pattern: str, within_s: float = 60.0) -> re.Match[str]:
        """Reads until the pattern is in what was written since the last match, and forgets all up to its end."""
        deadline = time.monotonic() + within_s
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not appear in {self.seen!r}"
            assert self._read(left), f"the program ended without {pattern!r}: {self.seen!r}"
        self.seen = self.seen[found.end() :]
        return found

    def wait(self, within_s: float = 30.0) -> int:
        """Reads what is left and returns the exit code."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self._read(1.0):
            pass
        return self.child.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, wait_s: float) -> bool:
        """False once the program has closed the terminal."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return self.child.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal(arguments: list[str], folder: Path) -> Iterator[Terminal]:
    """Starts the program with a controlling terminal, so that Ctrl-C is a signal where no editor reads the keys.

    setsid does so in the child: Python would have to copy this process for it, which fails in one that has reserved
    more memory than there is.
    """
    master, slave = pty.openpty()
    child = subprocess.Popen(
        ["setsid", "--ctty", *commands.command("chat", arguments)],
        cwd=folder,
        env=commands.environment(PROMPT_TOOLKIT_NO_CPR="1", TERM="xterm-256color"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(child, master)
    finally:
        child.kill()
        child.wait()
        os.close(master)
