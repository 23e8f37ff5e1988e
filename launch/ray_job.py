"""Runs serve, generate or bench on a Ray cluster, as a job of the cluster.

    ray job submit -- python launch/ray_job.py task=generate parallel.ranks=4 prompt="def fibonacci(n):"
    ray job submit -- python launch/ray_job.py task=serve parallel.ranks=4 server.port=8000
    ray job submit -- python launch/ray_job.py task=serve parallel.ranks=2 ray.num_replicas=3
    ray job submit -- python launch/ray_job.py task=bench -m parallel=lp,tp parallel.ranks=2

Each rank is an actor, and so is the front end. A rank that is lost is started again; under lookahead parallelism no
request is lost with it. ray.placement chooses how ranks are placed on nodes.
"""

from __future__ import annotations

import logging
import sys

from launch.cluster.settings import require_ray
from launch.config import process

log = logging.getLogger("lookahead")

TASKS = ("serve", "generate", "bench")
MULTIRUN = ("-m", "--multirun")


def main() -> int:
    """Returns the exit code of the task, or 2 for what the user can fix."""
    process.set_logging(rank=0)
    try:
        task, arguments = split(sys.argv[1:])
        require_ray()
    except ValueError as error:
        log.error("error: %s", error)
        return 2
    return run(task, arguments)


def split(arguments: list[str]) -> tuple[str, list[str]]:
    """The name of the task, and the arguments for it. Raises ValueError."""
    named = [argument.partition("=")[2] for argument in arguments if argument.startswith("task=")]
    if len(named) != 1 or named[0] not in TASKS:
        raise ValueError(f"give one task=NAME, out of {', '.join(TASKS)} (got {' and '.join(named) or 'none'})")
    return named[0], [argument for argument in arguments if not argument.startswith("task=")]


def run(task: str, arguments: list[str]) -> int:
    if task == "bench":
        from launch import bench

        flags = [argument for argument in arguments if argument in MULTIRUN]
        others = [argument for argument in arguments if argument not in MULTIRUN]
        sys.argv[1:] = [*flags, *others, "launcher=ray"]  # Hydra reads them there, and wants its flags first
        return bench.main()
    # Imported late, because they need Ray.
    from launch.cluster.driver import generate, serve
    from launch.cluster.program_settings import RayGenerateSettings, RayServeSettings, register_settings

    register_settings()
    if task == "serve":
        return process.main("ray_serve", RayServeSettings, serve, __doc__ or "", arguments)
    return process.main("ray_generate", RayGenerateSettings, generate, __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
