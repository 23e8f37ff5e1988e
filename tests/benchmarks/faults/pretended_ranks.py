"""A server in the test's own process whose ranks exist only to be killed: it answers whether they live or not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.faults.rank_server import LauncherKind, RankServer, RankStatus, ServerStatus
from lp.model.checkpoint import ModelSettings, load
from tests.launch.server import harness

LIFE_S = "1200"


class PretendedRanks(RankServer):
    """A killed rank is back when its status is read next."""

    def __init__(self, url: str, num_ranks: int):
        self.url, self.num_ranks = url, num_ranks
        self.epoch = 1
        self._ranks = [self._start() for _ in range(num_ranks)]

    def status(self) -> ServerStatus:
        for rank, process in enumerate(self._ranks):
            if process.poll() is not None:
                self._ranks[rank] = self._start()
                self.epoch += 1
        return ServerStatus(
            self.epoch, False, [RankStatus(rank, "serving", process.pid) for rank, process in enumerate(self._ranks)]
        )

    def family(self) -> list[psutil.Process]:
        found = [psutil.Process()]
        for process in self._ranks:
            with suppress(psutil.NoSuchProcess):  # one that was killed may have been taken away meanwhile
                found.append(psutil.Process(process.pid))
        return found

    def close(self) -> None:
        for process in self._ranks:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", LIFE_S])


@contextmanager
def serving(
    model: Path, num_ranks: int, *settings: str, launcher: LauncherKind = LauncherKind.local
) -> Iterator[RankServer]:
    """Takes the place of `rank_server.serving`."""
    with harness.serving(load(ModelSettings(path=str(model), device="cpu"))) as running:
        ranks = PretendedRanks(running.url, num_ranks)
        try:
            yield ranks
        finally:
            ranks.close()
