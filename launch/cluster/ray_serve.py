"""Several groups of ranks behind one address, by Ray Serve: each replica is the front end of a group of its own.

Ray Serve's proxy takes the requests and hands each to a replica that has few. Ray Serve checks the health of replicas,
replaces those that have failed, and, if ray.max_replicas is given, adds and removes replicas with the load.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from launch.cluster.errors import shorten_ray_error
from launch.cluster.program_settings import RayServeSettings, register_settings, resolve_settings
from launch.cluster.replica import (
    APPLICATION,
    LAST_ANSWERS_S,
    POLL_S,
    Anchor,
    Group,
    end_all_groups,
    explain_failed_start,
    list_applications,
)
from launch.config import configuration
from launch.config.engine_settings import to_json_values
from launch.server.run import bind

log = logging.getLogger("lookahead")

QUIET = {"log_level": "WARNING", "enable_access_log": False}


def build(arguments: Mapping[str, Any]) -> Application:
    """The application, as `serve deploy` and KubeRay ask for it.

    arguments: settings of task=serve as on a command line, such as {"model.path": ...}.

    Raises UsageError, and ValueError for settings that are out of range.
    """
    register_settings()
    values = [f"{key}={value}" for key, value in arguments.items()]
    settings = configuration.load("ray_serve", RayServeSettings, values)
    resolve_settings(settings)
    return _application(settings, anchor=None)


def run_replicas(settings: RayServeSettings, next_signal: Callable[[], int | None]) -> int:
    """Serves until a signal comes and returns the exit code. Raises ValueError if the replicas do not start.

    next_signal: the next signal that has come, None if there is none.
    """
    server = settings.server
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
