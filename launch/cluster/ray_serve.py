"""Several groups of ranks behind one address, by Ray Serve: each replica is the front end of a group of its own.

Ray Serve's proxy takes the requests and hands each to a replica that has few. Ray Serve checks the health of replicas,
replaces those that have failed, and, if ray.max_replicas is given, adds and removes replicas with the load.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from launch.cluster.nodes import shorten_ray_error
from launch.cluster.program_settings import RayServeSettings, register_settings, resolve_settings
from launch.cluster.task import open_group
from launch.config import configuration
from launch.config.engine_settings import from_json_values, to_json_values
from launch.server.app import make_app
from launch.server.context import Context
from launch.server.run import bind
from launch.server.settings import ServerSettings

log = logging.getLogger("lookahead")

QUIET = {"log_level": "WARNING", "enable_access_log": False}
# The name of the Ray Serve application.
APPLICATION = "lookahead-parallel"
# Seconds between two looks at something that is awaited.
POLL_S = 0.25
# Seconds that a replica has beyond server.drain_s to end its group.
LAST_ANSWERS_S = 5.0


def build(arguments: Mapping[str, Any]) -> Application:
    """The application, as `serve deploy` and KubeRay ask for it.

    arguments: settings of task=serve as on a command line, such as {"model.path": ...}.

    Raises UsageError, and ValueError for settings that cannot be used.
    """
    register_settings()
    values = [f"{key}={value}" for key, value in arguments.items()]
    settings = configuration.load("ray_serve", RayServeSettings, values)
    resolve_settings(settings)
    _check_tls(settings.server)
    return _application(settings, anchor=None)


def run_replicas(settings: RayServeSettings, next_signal: Callable[[], int | None]) -> int:
    """Serves until a signal comes and returns the exit code. Raises ValueError for settings that cannot be used, and
    if the replicas do not start.

    next_signal: the next signal that has come, None if there is none.
    """
    server = settings.server
    _check_tls(server)
    bind(server).close()  # first of all, so that nothing is started if the port is busy
    if others := [name for name in list_applications() if name != APPLICATION]:
        log.info("Ray Serve is running already, with %s: it keeps its own address", " and ".join(others))
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    http = {"host": server.host, "port": server.port}
    anchor = ray.remote(Anchor).options(num_cpus=0, max_concurrency=1000).remote()
    try:
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config=QUIET)
        serve.run(_application(settings, anchor), name=APPLICATION, route_prefix="/", logging_config=QUIET)
        log.info("serving %s on http://%s:%d", settings.model.path, server.host, server.port)
        while (number := next_signal()) is None:
            time.sleep(POLL_S)
        log.info("signal %d: no new requests; those accepted have %g s", number, server.drain_s)
        return 0
    except (RayError, RayServeException, RuntimeError) as error:
        raise ValueError(
            f"the replicas did not come up: {explain_failed_start() or shorten_ray_error(error)}"
        ) from error
    finally:
        end_all_groups()


def _check_tls(server: ServerSettings) -> None:
    """Raises ValueError for a certificate: the address belongs to Ray Serve's proxy."""
    for name in ("tls_certificate", "tls_key"):
        if getattr(server, name) is not None:
            raise ValueError(
                f"server.{name} is not for replicas, as Ray Serve's proxy speaks HTTP; leave it out and let a proxy in "
                "front speak HTTPS, or leave out ray.num_replicas and ray.max_replicas"
            )


def _application(settings: RayServeSettings, anchor: Any) -> Application:
    wanted, server = settings.ray, settings.server
    scaling: dict[str, Any] = {"num_replicas": wanted.num_replicas or 1}
    if wanted.max_replicas is not None:
        limits = {"min_replicas": wanted.num_replicas or 1, "max_replicas": wanted.max_replicas}
        scaling = {"autoscaling_config": {**limits, "target_ongoing_requests": wanted.target_requests}}
    deployment = serve.deployment(
        Group,
        name="group",
        ray_actor_options={"num_cpus": 0},  # the cores are reserved for the ranks, which compute
        max_ongoing_requests=server.max_running + server.max_waiting,
        health_check_period_s=wanted.health_period_s,
        graceful_shutdown_timeout_s=server.drain_s + LAST_ANSWERS_S,
        **scaling,
    )
    return deployment.bind(json.dumps(to_json_values(settings, RayServeSettings)), anchor)


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
