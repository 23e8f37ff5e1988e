"""What a sweep and the ranks of one measurement hand each other: files in a temporary folder.

Needs nothing but Python, as a rank reads its order before it loads anything that starts threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class JobSpec:
    """What the ranks are to do. engine, settings: of the point. cores: of each rank. timeout_s: for all of it."""

    engine: str
    settings: dict[str, Any]
    cores: list[list[int]]
    timeout_s: float


@dataclass(frozen=True)
class Handover:
    folder: Path

    @property
    def spec(self) -> Path:
        """An JobSpec as JSON."""
        return self.folder / "job.json"

    @property
    def texts(self) -> Path:
        """What rank 0 has measured of all texts, as JSON."""
        return self.folder / "texts.json"

    def figures(self, rank: int) -> Path:
        """RankFigures as JSON."""
        return self.folder / f"figures-{rank}.json"

    def error(self, rank: int) -> Path:
        """Why a rank has failed, in its own words."""
        return self.folder / f"error-{rank}.txt"

    def read_spec(self) -> JobSpec:
        return JobSpec(**json.loads(self.spec.read_text(encoding="utf-8")))
