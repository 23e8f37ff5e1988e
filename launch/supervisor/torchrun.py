"""A group whose ranks torchrun has started: rank 0 is the front end as well, and all ranks are workers.

torchrun ends all ranks when one of them ends, so none is started again. Each rank keeps the process and the device that
torchrun gave it.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from torch.distributed import DistError, Store

from launch.config.runtime import RuntimeSettings
from launch.supervisor.launcher import OnExit, RankSpec
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.rank import Rank, run_worker
from launch.supervisor.supervisor import Supervisor
from parallel.errors import RankLost
from parallel.groups.link import Link
from parallel.groups.worker import Fenced, FrontEndGone
from parallel.mesh import Mesh, open_store, read_master

log = logging.getLogger("lookahead")

# Where the store has the front end's address.
FRONT_END = "front_end"
# Seconds that rank 0 gets to read the checkpoint, which may have to be downloaded first.
READ_S = 900.0
# Seconds that rank 0's worker gets to end.
LEAVE_S = 5.0


def lead(settings: RuntimeSettings, mesh: Mesh) -> Supervisor:
    """Rank 0: returns the front end, which becomes a worker as well when it runs.

    Raises ValueError as Supervisor does, and RankLost if the ranks do not meet.
    """
    timeout_s = settings.parallel.timeout_s
    launcher = TorchrunLauncher(settings, mesh, open_store(mesh, timeout_s))
    supervision = SupervisorSettings(answer_timeout_s=timeout_s, start_timeout_s=math.inf)
    whole = replace(settings, parallel=replace(settings.parallel, ranks=mesh.num_ranks))
    return Supervisor(whole, supervision, launcher, restarts=False)


def follow(settings: RuntimeSettings, mesh: Mesh) -> int:
    """Another rank than 0: serves as a worker until rank 0 ends the group. Returns the exit code.

    Raises RankLost, and what run_worker raises.
    """
    store = open_store(mesh, settings.parallel.timeout_s)
    try:
        store.wait([FRONT_END], timedelta(seconds=READ_S))
        host, port, key = json.loads(store.get(FRONT_END))
    except DistError as error:
        raise RankLost(f"rank 0 did not say where it listens: {error}", (0,)) from error
    try:
        _work(settings, mesh, store, (host, port), bytes.fromhex(key))
    except (ConnectionError, FrontEndGone) as error:
        raise RankLost(f"rank 0 was lost: {error}", (0,)) from error
    return 0


def _work(settings: RuntimeSettings, mesh: Mesh, store: Store, front_end: tuple[str, int], key: bytes) -> None:
    """Raises ConnectionError, and what run_worker raises."""
    with suppress(Fenced):  # it is told to leave when rank 0 ends early
        run_worker(Link.connect(front_end, key), mesh.rank, partial(Rank, settings, mesh, store))


class TorchrunLauncher:
    """A Launcher whose ranks have been started already. They learn from the store where the front end listens."""

    def __init__(self, settings: RuntimeSettings, mesh: Mesh, store: Store):
        self._settings, self._mesh, self._store = settings, mesh, store
        is_one_host = mesh.num_local_ranks == mesh.num_ranks
        self.host = "127.0.0.1" if is_one_host else "0.0.0.0"
        self._reached_as = self.host if is_one_host else read_master()
        self._own: threading.Thread | None = None

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        """Starts rank 0's worker as a thread of this process. The end of a rank shows in its link."""
        if spec.rank != self._mesh.rank:
            return
        _, port = spec.front_end
        self._store.set(FRONT_END, json.dumps([self._reached_as, port, key.hex()]))
        self._own = threading.Thread(target=self._work, args=(port, key), name="rank 0", daemon=True)
        self._own.start()

    def _work(self, port: int, key: bytes) -> None:
        try:
            _work(self._settings, self._mesh, self._store, ("127.0.0.1", port), key)
        except Exception as error:
            log.debug("rank 0 ended here, and has told the front end", exc_info=error)

    def kill(self, rank: int) -> None:
        """Does nothing: the group ends with the front end, and torchrun ends what is left."""

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Not asked for: each rank knows its own place."""
        return self._mesh.local_rank, self._mesh.num_local_ranks

    def close(self) -> None:
        if self._own:
            self._own.join(LEAVE_S)
