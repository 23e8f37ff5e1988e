"""A driver that places ranks without models: python -m tests.launch.cluster.placing ADDRESS. One JSON object on stdout.

For each placement, the node (IP address) and the GPUs of every rank's actor; and what is said of what cannot be had.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ray

from launch.cluster import connect, nodes
from launch.cluster.demand import Demand
from launch.cluster.reservation import Reservation
from launch.cluster.settings import Placement

READY_S = 2.0


class Probe:
    def where(self) -> tuple[str, str | None]:
        return ray.util.get_node_ip_address(), os.environ.get("CUDA_VISIBLE_DEVICES")


def placed(num_ranks: int, gpus: int, placement: str) -> list[tuple[str, str | None]]:
    demand = Demand(num_ranks, 1.0, gpus, Placement(placement))
    reservation = Reservation(demand)
    try:
        reservation.wait(READY_S)
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus}
        actors = [
            ray.remote(Probe).options(**options, scheduling_strategy=reservation.strategy(rank)).remote()
            for rank in range(num_ranks)
        ]
        return ray.get([actor.where.remote() for actor in actors])
    finally:
        reservation.release()


def unseen_checkpoint() -> None:
    reservation = Reservation(Demand(2, 1.0, 0, Placement.spread))
    try:
        reservation.wait(READY_S)
        nodes.check(reservation, "/nowhere/model", ready_s=60.0)
    finally:
        reservation.release()


def said(action: Callable[[], Any]) -> str:
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def main(address: str) -> None:
    connect.join(address)
    found: dict[str, Any] = {placement.value: placed(2, 0, placement.value) for placement in Placement}
    found["gpus"] = placed(2, 1, "pack")
    found["too many GPUs"] = said(lambda: placed(4, 1, "pack"))
    found["too many nodes"] = said(lambda: placed(4, 0, "strict_spread"))
    found["unseen checkpoint"] = said(unseen_checkpoint)
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
