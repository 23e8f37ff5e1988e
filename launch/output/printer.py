"""Shows results from a thread of its own, so that a reader that pauses holds up neither the steps nor other ranks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TextIO

from launch.output.terminal import Display
from lp.request import Completion, Output


class Printer:
    """A Display that passes everything on to another `output`, in order and without waiting for it.

    Leaving its `with` block waits until the rest is shown. error: what ended the writing early; nothing is shown after
    it.
    """

    def __init__(self, output: Display):
        self.error: Exception | None = None
        self._output = output
        self._due: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="printer", daemon=True)

    def __enter__(self) -> Printer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._due.put(None)
        self._thread.join()

    def begin(self, prompt: str) -> None:
        self._due.put(partial(self._output.begin, prompt))

    def progress(self, progress: Output) -> None:
        self._due.put(partial(self._output.progress, progress))

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._due.put(partial(self._output.end, completion, record))

    def _write(self) -> None:
        try:
            while write := self._due.get():
                write()
        except Exception as error:  # also ValueError: a character that the output's encoding does not have
            give_up_rest(sys.stdout)
            give_up_rest(sys.stderr)
            self.error = error


def give_up_rest(stream: TextIO) -> None:
    """Drops what a stream holds but cannot write; else Python would try again at exit and change the exit code."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
