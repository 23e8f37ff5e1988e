"""Says what this machine has, what is used of it and why, and what to install to be faster.

    python launch/doctor.py
    python launch/doctor.py model=smollm2 parallel.ranks=2 json=true
    python launch/doctor.py model.path=FOLDER load=false

It measures memory, links between GPUs and exchanges between ranks in a few seconds, says what the model needs, and
loads it as the other commands do, unless load=false. Exit code 0, or 1 if something is there that does not work.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

import lp
from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.engine_settings import num_ranks
from launch.config.runtime import RuntimeSettings
from launch.diagnostics import choices, findings, links, machine, model, software
from launch.diagnostics.findings import Finding
from parallel.mesh import is_rank


@dataclass
class DoctorSettings(RuntimeSettings):
    """The settings of the program, in addition to those of every program.

    json: print one JSON object. load: whether the model is loaded; without, nothing of its weights is read.
    """

    json: bool = False
    load: bool = True


def examine(settings: DoctorSettings) -> Iterator[Finding]:
    """Everything that can be found out, in the order in which it is shown."""
    bytes_per_s = None
    for finding in machine.inspect():
        yield finding
        if finding.name == machine.MEMORY_SPEED:
            bytes_per_s = finding.value
    yield from links.between_gpus()
    yield from links.between_ranks(max(2, num_ranks(settings.parallel)))
    yield from software.inspect()
    yield from model.inspect(settings, bytes_per_s)
    if settings.load:
        yield from choices.inspect(settings)
    yield from software.caches()


@contextmanager
def _warnings_alone() -> Iterator[None]:
    """Lets nothing but warnings be logged in its body."""
    log = logging.getLogger("lookahead")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def run(settings: DoctorSettings) -> int:
    """Exit code 0, or 1 if something is broken. Raises ValueError under torchrun."""
    if is_rank():
        raise ValueError("the checkup starts the ranks that it needs itself: run it without torchrun")
    found: list[Finding] = []
    console = Console()
    with _warnings_alone(), Console(stderr=True).status("looking at this machine") as status:
        for finding in examine(settings):
            found.append(finding)
            status.update(f"{finding.section}: {finding.name}")
    if settings.json:
        print(findings.to_json(lp.__version__, found))
    else:
        findings.show(console, lp.__version__, found)
    return int(any(finding.is_broken for finding in found))


def main() -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    engine_settings.register("doctor", DoctorSettings)
    return process.main("doctor", DoctorSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
