"""The folder of a sweep: its points, a line for each measurement as soon as it is done, logs, and the report.

A sweep whose folder holds measurements already is resumed: these are not repeated.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launch.sweep.records import Point, Run

log = logging.getLogger("lookahead")
KEPT = "what was measured is kept; make room and give the same output again"


class SweepFolder:
    """Reads and writes the folder of a sweep.

    Raises ValueError if it cannot write, for instance to a full disk. What is in the folder by then stays.
    """

    def __init__(self, path: Path):
        self.path = path
        self.logs = path / "logs"
        self._runs = path / "runs.jsonl"
        with self.writing("name another folder"):
            self.logs.mkdir(parents=True, exist_ok=True)
            self._runs.touch()

    @contextmanager
    def writing(self, mend: str = KEPT) -> Iterator[None]:
        """Raises ValueError if the body cannot write. mend: what the user can do about it."""
        try:
            yield
        except OSError as error:
            raise ValueError(f"output={self.path} cannot be written: {error.strerror or error}; {mend}") from error

    def write_points(self, points: Sequence[Point]) -> None:
        self.write("points.json", json.dumps([dataclasses.asdict(point) for point in points], indent=1))

    def append(self, run: Run) -> None:
        """Adds a line for a measurement. The lines before it stay whole, whatever happens."""
        self._append(run.to_json() + "\n")

    def runs(self) -> list[Run]:
        """Returns all measurements, failures included. A line that was only partly written is left out."""
        found = []
        lines = self._runs.read_text(encoding="utf-8", errors="replace").split("\n")
        if lines[-1]:
            self._append("\n")  # the next measurement must begin a line of its own
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                found.append(Run.from_dict(json.loads(line)))
            except (json.JSONDecodeError, TypeError, KeyError):
                log.warning("%s, line %d is not a whole measurement and is left out", self._runs, number)
        return found

    def _append(self, text: str) -> None:
        with self.writing(), open(self._runs, "a", encoding="utf-8") as file:
            file.write(text)

    def write(self, name: str, text: str) -> None:
        """Replaces a file of the folder; it is never half written."""
        partial = self.path / f".{name}.partial"
        with self.writing():
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.path / name)


def latest(runs: Sequence[Run]) -> list[Run]:
    """Returns the last run of each point and round; it may have succeeded after an earlier failure."""
    return list({(run.point, run.round): run for run in runs}.values())
