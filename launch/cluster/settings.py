"""Settings of a run on a Ray cluster. This module does not import Ray, so a command line can be read without it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec

# How a driver sets up Ray: equal log lines of two ranks are both shown, and joining a cluster that refuses is tried for
# three seconds only.
ENVIRONMENT = {"RAY_DEDUP_LOGS": "0", "RAY_NUM_REDIS_GET_RETRIES": "3"}


class Placement(StrEnum):
    """How ranks are placed on nodes.

    pack: on as few nodes as possible. spread: on as many as possible. strict_pack: all on one node. strict_spread: each
    on a node of its own.
    """

    pack = "pack"
    spread = "spread"
    strict_pack = "strict_pack"
    strict_spread = "strict_spread"


@dataclass
class RaySettings:
    """Where the ranks are started, and what each reserves.

    address: HOST:PORT of the cluster; auto means the cluster of this node or of the job. placement: see Placement.
    cpus_per_rank: cores that a rank reserves, and the number of its threads unless parallel.threads is given; a rank on
    a GPU also reserves that GPU. ready_s: seconds to wait for the resources, and for the nodes to answer.

    num_replicas: number of groups of ranks that Ray Serve runs behind one address; None means one group with a server
    of its own. max_replicas: lets Ray Serve add groups up to this number while a group has more than target_requests
    running, and remove them again down to num_replicas. target_requests: running requests of a group above which
    another group is added. health_period_s: seconds between Ray Serve's health checks.
    """

    address: str = "auto"
    placement: Placement = Placement.pack
    cpus_per_rank: float = 1.0
    ready_s: float = 120.0
    num_replicas: int | None = None
    max_replicas: int | None = None
    target_requests: float = 4.0
    health_period_s: float = 5.0

    def check(self) -> None:
        """Raises ValueError naming the first setting that is out of range."""
        if self.cpus_per_rank < 0:
            raise ValueError(f"ray.cpus_per_rank={self.cpus_per_rank:g} must be 0 or more")
        for name in ("ready_s", "target_requests", "health_period_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"ray.{name}={getattr(self, name):g} must be more than 0")
        if self.num_replicas is not None and self.num_replicas < 1:
            raise ValueError(f"ray.num_replicas={self.num_replicas} must be at least 1, or left out")
        if self.max_replicas is not None and self.max_replicas < (self.num_replicas or 1):
            raise ValueError(
                f"ray.max_replicas={self.max_replicas} must be at least ray.num_replicas={self.num_replicas or 1}"
            )

    @property
    def uses_ray_serve(self) -> bool:
        return self.num_replicas is not None or self.max_replicas is not None


def require_ray() -> None:
    """Prepares the environment for Ray; call it before you import Ray. Raises ValueError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ValueError("Ray must be installed: pip install 'lookahead-parallel[ray]'")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
