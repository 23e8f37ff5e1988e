"""The files by which a sweep and the ranks of one measurement hand data to each other, in a temporary folder.

This module needs only Python: a rank reads its spec before it loads anything that starts threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class JobSpec:
    """What the ranks are to do. engine, settings: those of the point. cores: of each rank. timeout_s: limit for all."""

    engine: str
    settings: dict[str, Any]
    cores: list[list[int]]
    timeout_s: float


@dataclass(frozen=True)
class Handover:
    folder: Path

    @property
    def spec(self) -> Path:
        """The file with a JobSpec as JSON."""
        return self.folder / "job.json"

    @property
    def texts(self) -> Path:
        """The file with what rank 0 has measured for all texts, as JSON."""
        return self.folder / "texts.json"

    def figures(self, rank: int) -> Path:
        """The file with a rank's RankFigures as JSON."""
        return self.folder / f"figures-{rank}.json"

    def error(self, rank: int) -> Path:
        """The file with the error message of a rank that failed."""
        return self.folder / f"error-{rank}.txt"

    def read_spec(self) -> JobSpec:
        return JobSpec(**json.loads(self.spec.read_text(encoding="utf-8")))
