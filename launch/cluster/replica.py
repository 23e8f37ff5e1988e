"""A replica of Ray Serve: the front end of a group of ranks. And functions that inspect and end all replicas."""

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
from launch.config.engine_settings import from_json_values
from launch.server.app import make_app
from launch.server.context import Context

log = logging.getLogger("lookahead")

# The name of the Ray Serve application.
APPLICATION = "lookahead-parallel"
# Seconds between two looks at something that is awaited.
POLL_S = 0.25
# Seconds that a replica has beyond server.drain_s to end its group.
LAST_ANSWERS_S = 5.0


class Anchor:
    """An actor that the driver owns, so it dies with the driver, even if the driver is killed."""

    def hold(self) -> None:
        threading.Event().wait()


@serve.ingress()
class Group:
    """The deployment: a group of ranks and its HTTP routes, to which Ray Serve's proxy sends requests."""

    def __init__(self, settings: str, anchor: Any = None):
        """settings: RayServeSettings as JSON. anchor: an Anchor; the replicas end when it dies. None: they stay."""
        self._failure: str | None = None
        self._is_open = False  # Ray Serve calls __del__ even if this raises
        serve_settings = from_json_values(json.loads(settings), RayServeSettings)
        self._context = Context(open_group(serve_settings), serve_settings.server)
        self._is_open = True
        self._worker = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._worker.start()
        if anchor:
            threading.Thread(target=_end_with, args=(anchor,), name="anchor", daemon=True).start()
        self._await_ranks()

    def __repr__(self) -> str:
        return "front end"

    def __serve_build_asgi_app__(self) -> Any:
        """The same routes as those of a server without Ray Serve."""
        return make_app(self._context)

    def check_health(self) -> None:
        """Raises RuntimeError if this replica must be replaced, but not while its ranks are being started again."""
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
        """Waits until this replica can answer, because requests follow then. Raises RuntimeError if the ranks fail."""
        while not self._context.backend.is_serving:
            if self._failure is not None:
                raise RuntimeError(self._failure)
            time.sleep(POLL_S)

    def _drive(self) -> None:
        service = self._context.service
        try:
            self._context.backend.run(service, service.emit, service.lose_running)
        except Exception as error:
            log.error("the engine stopped: %s: %s", type(error).__name__, error)
            self._failure = str(error)
            service.fail()


def _end_with(anchor: Any) -> None:
    """Ends all groups when the anchor dies: Ray Serve outlives its driver, and a killed driver cannot end it."""
    try:
        ray.get(anchor.hold.remote())
    except RayError:
        end_all_groups()


def end_all_groups() -> None:
    """Removes the groups, and shuts Ray Serve down unless other applications use it."""
    if APPLICATION in list_applications():
        serve.delete(APPLICATION)
    if not list_applications():
        serve.shutdown()


def list_applications() -> list[str]:
    """The names of the applications that Ray Serve runs on this cluster."""
    try:
        return list(serve.status().applications)
    except RayServeException:
        return []


def explain_failed_start() -> str | None:
    """The error message of a replica that could not start; None if there is none."""
    application = serve.status().applications.get(APPLICATION)
    messages = [deployment.message for deployment in application.deployments.values()] if application else []
    errors = re.findall(r"^\s*(?:\w+\.)*\w*Error: (.+)$", "\n".join(messages), re.MULTILINE)
    return errors[-1] if errors else None
