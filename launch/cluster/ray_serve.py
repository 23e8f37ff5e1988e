"""Several groups of ranks behind one address, by Ray Serve: each replica is the front end of a group of its own.

Ray Serve's proxy takes the requests and hands each to a replica that has few; it asks replicas how they are, replaces
those that have failed, and adds and removes some with the load, if it may.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from launch.cluster import nodes, program_settings
from launch.cluster.front_end import Signals
from launch.cluster.program_settings import RayServeSettings
from launch.cluster.replica import LAST_ANSWERS_S, LOOK_S, NAME, Anchor, Group, applications, end_all, why_not_up
from launch.program import configuration
from launch.program.settings_json import to_json_values
from launch.server.run import bind

log = logging.getLogger("lookahead")

QUIET = {"log_level": "WARNING", "enable_access_log": False}


def build(arguments: Mapping[str, Any]) -> Application:
    """What `serve deploy` and KubeRay ask for, with settings of task=serve as on a command line: {"model.path": ...}.

    Raises UsageError, and ValueError for settings that are out of range.
    """
    program_settings.register()
    values = [f"{key}={value}" for key, value in arguments.items()]
    settings = configuration.load("ray_serve", RayServeSettings, values)
    program_settings.resolve(settings)
    return _application(settings, anchor=None)


def run(settings: RayServeSettings, signals: Signals) -> int:
    """Serves until a signal; the exit code. Raises ValueError if the replicas do not come up."""
    server = settings.server
    bind(server).close()  # a busy port is said before anything is started
    if others := [name for name in applications() if name != NAME]:
        log.info("Ray Serve is running already, with %s: it keeps its own address", " and ".join(others))
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    http = {"host": server.host, "port": server.port}
    anchor = ray.remote(Anchor).options(num_cpus=0, max_concurrency=1000).remote()
    try:
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config=QUIET)
        serve.run(_application(settings, anchor), name=NAME, route_prefix="/", logging_config=QUIET)
        log.info("serving %s on http://%s:%d", settings.model.path, server.host, server.port)
        while (number := signals.next()) is None:
            time.sleep(LOOK_S)
        log.info("signal %d: no new requests; those accepted have %g s", number, server.drain_s)
        return 0
    except (RayError, RayServeException, RuntimeError) as error:
        raise ValueError(f"the replicas did not come up: {why_not_up() or nodes.in_short(error)}") from error
    finally:
        end_all()


def _application(settings: RayServeSettings, anchor: Any) -> Application:
    wanted, server = settings.ray, settings.server
    scaling: dict[str, Any] = {"num_replicas": wanted.num_replicas or 1}
    if wanted.max_replicas is not None:
        limits = {"min_replicas": wanted.num_replicas or 1, "max_replicas": wanted.max_replicas}
        scaling = {"autoscaling_config": {**limits, "target_ongoing_requests": wanted.target_requests}}
    deployment = serve.deployment(
        Group,
        name="group",
        ray_actor_options={"num_cpus": 0},  # what computes are the ranks
        max_ongoing_requests=server.max_running + server.max_waiting,
        health_check_period_s=wanted.health_period_s,
        graceful_shutdown_timeout_s=server.drain_s + LAST_ANSWERS_S,
        **scaling,
    )
    return deployment.bind(json.dumps(to_json_values(settings, RayServeSettings)), anchor)
