"""One rank of one measurement: python -m launch.sweep.rank FOLDER LOCAL_RANK, started by ranks.py.

FOLDER: a Handover with the JobSpec. The rank writes its results there, too: its figures, the texts (rank 0 only), or
the message of an error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

from launch.sweep.handover import Handover, JobSpec

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
    """Pins the rank to its cores, with as many threads, and lets it end itself when its time is over.

    SIGINT, by which the launcher ends it, does so at once: in the background a shell would have it ignored.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    os.environ |= {**ENVIRONMENT, "OMP_NUM_THREADS": str(len(cores))}


def _measure(spec: JobSpec, handover: Handover, rank: int) -> None:
    from launch.program import process  # not before: threads that torch starts stay on the cores that it was started on
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
