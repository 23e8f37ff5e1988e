"""Writes the traces of all steps to a file, a JSON object a line, beside another output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launch.output.terminal import Display
from lp.request import Completion, Output


class TraceFile:
    """A Display that passes everything on to another one.

    A line has the number of the prompt, from 0, the step's text as far as it was whole, and the step's trace (see
    lp.StepTrace). Raises ValueError if the file cannot be written.
    """

    def __init__(self, output: Display, path: str):
        self._output = output
        self._number = -1
        try:
            self._file = Path(path).expanduser().open("w", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"trace={path} cannot be written: {error.strerror}") from None

    def begin(self, prompt: str) -> None:
        self._number += 1
        self._output.begin(prompt)

    def progress(self, progress: Output) -> None:
        if progress.trace is not None:
            line = {"prompt": self._number, "text": progress.text, **progress.trace.to_dict()}
            self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
        self._output.progress(progress)

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._output.end(completion, record)
