"""Settings of a run on a Ray cluster. Does not need Ray, so that a command line can be read without it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec

ENVIRONMENT = {"RAY_DEDUP_LOGS": "0", "RAY_NUM_REDIS_GET_RETRIES": "3"}
"""Of a driver, for Ray: what two ranks say alike is said by both; a cluster that refuses it is asked for 3 s."""


class Placement(StrEnum):
    """How ranks lie on the nodes. pack: on as few as possible. spread: on as many as possible. strict_pack: on one.
    strict_spread: each on its own.
    """

    pack = "pack"
    spread = "spread"
    strict_pack = "strict_pack"
    strict_spread = "strict_spread"


@dataclass
class RaySettings:
    """Where the ranks are started, and what each reserves.

    address: of the cluster, host:port; auto is the one of this node, or of the job. cpus_per_rank: cores that a rank
    reserves, and its threads unless parallel.threads says otherwise; a rank on a GPU reserves one GPU besides.
    ready_s: seconds to wait for the resources, and for the nodes to answer.

    num_replicas: LP groups behind one address, by Ray Serve; None is one group with a server of its own.
    max_replicas: with it, Ray Serve adds groups up to that number while a group has more than target_requests under
    way, and takes them away again down to num_replicas. health_period_s: how often Ray Serve asks a group how it is.
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
    """To be called before any module that imports Ray. Raises ValueError if it is not installed."""
    if find_spec("ray") is None:
        raise ValueError("Ray must be installed: pip install 'lookahead-parallel[ray]'")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
