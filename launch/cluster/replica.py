"""One replica of Ray Serve: the front end of a group of ranks of its own. And the end of all of them."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from launch.cluster.group import open_group
from launch.cluster.program_settings import RayServeSettings
from launch.program.settings_json import from_json_values
from launch.server.app import make_app
from launch.server.context import Context

log = logging.getLogger("lookahead")

NAME = "lookahead-parallel"
"""Of the application."""
LOOK_S = 0.25
LAST_ANSWERS_S = 5.0
"""What a replica gets beyond server.drain_s to end its group."""


class Anchor:
    """An actor that the driver owns: it dies with the driver, whatever ends that."""

    def hold(self) -> None:
        threading.Event().wait()


@serve.ingress()
class Group:
    """Requests come to it from Ray Serve's proxy."""

    def __init__(self, order: str, anchor: Any = None):
        """order: RayServeSettings as JSON. anchor: the driver's, with whose end all replicas end; None: they stay."""
        self._failure: str | None = None
        self._is_open = False  # Ray Serve calls __del__ even if this raises
        settings = from_json_values(json.loads(order), RayServeSettings)
        self._context = Context(open_group(settings), settings.server)
        self._is_open = True
        self._worker = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._worker.start()
        if anchor:
            threading.Thread(target=_end_with, args=(anchor,), name="anchor", daemon=True).start()
        self._await_ranks()

    def __repr__(self) -> str:
        return "front end"

    def __serve_build_asgi_app__(self) -> Any:
        """The same routes as a server of its own has."""
        return make_app(self._context)

    def check_health(self) -> None:
        """Raises if this replica is to be replaced. One whose ranks are being started again is not."""
        if self._failure is not None:
            raise RuntimeError(f"the group has ended: {self._failure}")

    def __del__(self) -> None:
        """Ray Serve calls this once the replica's requests have ended."""
        if not self._is_open:
            return
        self._context.service.drain(0.0)
        self._worker.join(LAST_ANSWERS_S)
        self._context.close()

    def _await_ranks(self) -> None:
        """Requests are to go to replicas that can answer. Raises RuntimeError if the ranks cannot be started."""
        while not self._context.backend.is_serving:
            if self._failure is not None:
                raise RuntimeError(self._failure)
            time.sleep(LOOK_S)

    def _drive(self) -> None:
        service = self._context.service
        try:
            self._context.backend.run(service, service.emit, service.lose_running)
        except Exception as error:
            log.error("the engine stopped: %s: %s", type(error).__name__, error)
            self._failure = str(error)
            service.fail()


def _end_with(anchor: Any) -> None:
    """Ray Serve outlives its driver; a driver that was killed could not end it."""
    try:
        ray.get(anchor.hold.remote())
    except RayError:
        end_all()


def end_all() -> None:
    """Takes the groups away, and Ray Serve with them unless others use it."""
    if NAME in applications():
        serve.delete(NAME)
    if not applications():
        serve.shutdown()


def applications() -> list[str]:
    """Names of what Ray Serve runs on this cluster."""
    try:
        return list(serve.status().applications)
    except RayServeException:
        return []


def why_not_up() -> str | None:
    """What a replica that could not start has said; None if none has."""
    application = serve.status().applications.get(NAME)
    messages = [deployment.message for deployment in application.deployments.values()] if application else []
    said = re.findall(r"^\s*(?:\w+\.)*\w*Error: (.+)$", "\n".join(messages), re.MULTILINE)
    return said[-1] if said else None
