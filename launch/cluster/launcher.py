"""Starts ranks as Ray actors, each in its bundle of a placement group. Ray copies their output to the driver's log."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from launch.cluster.nodes import Reservation, is_alive, shorten_ray_error
from launch.supervisor.launcher import OnExit, RankSpec

# Seconds between two attempts to start a rank whose node has just died.
RETRY_S = 0.5


class RankActor:
    """A process for one rank. Ray puts its `repr` in front of its log lines."""

    def __init__(self, rank: int):
        self._rank = rank

    def __repr__(self) -> str:
        return f"rank {self._rank}"

    def begin(self) -> None:
        """Does nothing; its answer shows that the process runs."""

    def serve(self, spec: str, key: bytes) -> int:
        """Runs the rank until it ends; returns its exit code. spec: a RankSpec as JSON."""
        # Imported late: they load torch, which must find out then which GPUs Ray has given to this actor.
        from launch.config import process
        from launch.supervisor.rank import serve_rank

        process.set_logging(self._rank)
        return serve_rank(RankSpec.from_json(spec), key)


class RayLauncher:
    """A Launcher whose ranks are actors. Ray shows each actor only its own GPU, so every rank is local rank 0 of 1.

    A rank that is started again gets a new actor in the same bundle. If the bundle's node is lost, Ray moves the bundle
    to another node.
    """

    def __init__(self, reservation: Reservation):
        self.host: str = ray.util.get_node_ip_address()
        self._reservation = reservation
        self._actors: dict[int, Any] = {}
        self._changed = threading.Lock()
        self._is_closed = False

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        model = {**spec.settings["model"], "device": self._reservation.demand.device}
        text = replace(spec, settings={**spec.settings, "model": model}).to_json()
        actor = self._new_actor(spec.rank)
        threading.Thread(
            target=self._watch, args=(actor, spec.rank, text, key, on_exit), name=f"rank {spec.rank}", daemon=True
        ).start()

    def kill(self, rank: int) -> None:
        with self._changed:
            actor = self._actors.pop(rank, None)
        if actor:
            ray.kill(actor)

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        return 0, 1

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            ranks = list(self._actors)
        for rank in ranks:
            self.kill(rank)
        self._reservation.release()

    def _new_actor(self, rank: int) -> Any:
        demand = self._reservation.demand
        options: dict[str, Any] = {"num_cpus": demand.cpus, "num_gpus": demand.gpus}
        strategy = self._reservation.strategy(rank)
        actor: Any = ray.remote(RankActor).options(**options, scheduling_strategy=strategy).remote(rank)
        with self._changed:
            self._actors[rank] = actor
        return actor

    def _watch(self, actor: Any, rank: int, spec: str, key: bytes, on_exit: OnExit) -> None:
        """Runs in a thread: follows one rank's process from its start to its end."""
        try:
            while not self._has_begun(actor, rank):
                time.sleep(RETRY_S)  # its node has just died, and Ray has not moved the bundle yet
                actor = self._new_actor(rank)
            how = f"it ended with exit code {ray.get(actor.serve.remote(spec, key))}"
        except RayError as error:
            how = shorten_ray_error(error)
        if self._is_current(actor, rank):
            self.kill(rank)
        on_exit(rank, how)

    def _has_begun(self, actor: Any, rank: int) -> bool:
        """Waits until the actor runs. False if its node is lost; raises RayError for other failures."""
        node = self._reservation.nodes()[rank]
        try:
            ray.get(actor.begin.remote())
            return True
        except RayActorError:
            if self._is_closed or not self._is_current(actor, rank) or is_alive(node):
                raise
            return False

    def _is_current(self, actor: Any, rank: int) -> bool:
        """Whether this is still the rank's actor: it was neither replaced nor told to end."""
        return self._actors.get(rank) == actor
