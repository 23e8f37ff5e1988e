"""The files that a sweep and the ranks of one measurement exchange in a temporary folder.

This module imports only the standard library, because a rank reads its job before it loads anything that starts
threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class JobSpec:
    """The job of the ranks of one measurement.

    engine, settings: as in the point. cores: the cores of each rank. timeout_s: seconds that the measurement may take.
    """

    engine: str
    settings: dict[str, Any]
    cores: list[list[int]]
    timeout_s: float


@dataclass(frozen=True)
class Handover:
    """The paths of the files in the folder."""

    folder: Path

    @property
    def spec(self) -> Path:
        """The file of the JobSpec, as JSON."""
        return self.folder / "job.json"

    @property
    def texts(self) -> Path:
        """The file of what rank 0 has measured of all texts, as JSON."""
        return self.folder / "texts.json"

    def figures(self, rank: int) -> Path:
        """The file of a rank's RankFigures, as JSON."""
        return self.folder / f"figures-{rank}.json"

    def error(self, rank: int) -> Path:
        """The file of the error message of a rank that has failed."""
        return self.folder / f"error-{rank}.txt"

    def read_spec(self) -> JobSpec:
        return JobSpec(**json.loads(self.spec.read_text(encoding="utf-8")))
