"""Measurements that are kept one by one, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A measurement's figures, as JSON values.
Figures = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One measurement. settings: JSON values on which its figures depend; they are kept only for the same settings."""

    part: str
    name: str
    settings: dict[str, Any]
    measure: Callable[[], Figures]

    @property
    def key(self) -> str:
        return f"{self.part}/{self.name}"


class MeasurementStore:
    """Figures in a JSON file, which is written anew, whole, after every measurement.

    Figures count for the machine that they were measured on. Raises ValueError if the file cannot be used.
    """

    def __init__(self, path: Path, fresh: bool, machine: str):
        """fresh: forgets what the file holds. machine: the name of the processor, or of the GPU."""
        self.path = path
        self.machine = machine
        self.entries: dict[str, dict[str, Any]] = {}
        if not fresh:
            self._read()

    def figures(self, task: Task) -> Figures | None:
        """What is kept of a measurement; None if it must be done."""
        entry = self.entries.get(task.key)
        return entry["figures"] if entry and entry["settings"] == self._settings(task) else None

    def keep(self, task: Task, figures: Figures, seconds: float) -> None:
        self.entries[task.key] = {
            "settings": self._settings(task),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "figures": figures,
        }
        partial = self.path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps({"measurements": self.entries}, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ValueError(
                f"{self.path} cannot be written: {error.strerror}; what it held is kept: make room and start again"
            ) from error

    def _settings(self, task: Task) -> dict[str, Any]:
        return {**task.settings, "processor": self.machine}

    def _read(self) -> None:
        try:
            self.entries = json.loads(self.path.read_text(encoding="utf-8"))["measurements"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} cannot be read ({error}): remove it, or begin anew with --fresh") from error


def measure_all(
    tasks: Sequence[Task], store: MeasurementStore, begin: Callable[[Task, int, int], None]
) -> dict[str, str]:
    """Does what is not kept yet, and keeps it. Returns the reason of each failure, by the measurement's key.

    begin: called before each measurement with its number, from 1, and how many there are. A failure does not stop the
    others: it is tried again by the next run.
    """
    waiting = [task for task in tasks if store.figures(task) is None]
    failures: dict[str, str] = {}
    for number, task in enumerate(waiting, start=1):
        begin(task, number, len(waiting))
        clock = time.monotonic()
        try:
            figures = task.measure()
        except (ValueError, RuntimeError, OSError) as error:
            failures[task.key] = " ".join(str(error).split())
            continue
        store.keep(task, figures, time.monotonic() - clock)
    return failures
