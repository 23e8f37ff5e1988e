"""Runs one rank of one measurement; ranks.py starts it as python -m launch.sweep.rank FOLDER LOCAL_RANK.

FOLDER is a Handover with the job. The rank writes its figures there and, on rank 0, the texts. If it fails, it writes
the error message there. Imports only the standard library at first, because a rank reads its job before it loads
anything that starts threads.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
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


ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def main() -> int:
    handover, rank = Handover(Path(sys.argv[1])), int(sys.argv[2])
    spec = handover.read_spec()
    _prepare(spec.cores[rank], spec.timeout_s)
    try:
        _measure(spec, handover, rank)
    except Exception as error:
        is_for_users = isinstance(error, ValueError | OSError | RuntimeError)
        message = str(error) if is_for_users else f"{type(error).__name__}: {error}"
        handover.error(rank).write_text(" ".join(message.split()), encoding="utf-8")
        raise
    return 0


def _prepare(cores: list[int], timeout_s: float) -> None:
    """Pins the rank to its cores, gives it as many threads, and sets a timer that ends it after `timeout_s` seconds.

    SIGINT, with which the launcher ends ranks, gets its default action, because a shell makes processes in the
    background ignore it.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    os.environ |= {**ENVIRONMENT, "OMP_NUM_THREADS": str(len(cores))}


def _measure(spec: JobSpec, handover: Handover, rank: int) -> None:
    # These imports are late, because torch's threads keep the cores that the rank has when it imports torch.
    from launch.config import process
    from launch.sweep import baseline, measure
    from launch.sweep.settings import from_json_values

    process.keep_memory()
    process.set_logging(rank)
    settings = from_json_values(spec.settings)
    settings.parallel.threads = len(spec.cores[rank])
    outcome = measure.run(settings) if spec.engine == "runtime" else baseline.run(settings, spec.engine)
    handover.figures(rank).write_text(json.dumps(dataclasses.asdict(outcome.figures)), encoding="utf-8")
    if rank == 0:
        handover.texts.write_text(json.dumps(outcome.of_texts()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
