"""A driver that places ranks without models: python -m tests.launch.cluster.placing ADDRESS.

Prints one JSON object: for each placement the node (IP address) and the GPUs of every rank's actor, and the error
messages for demands that the cluster cannot meet.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ray

from launch.cluster.demand import Demand
from launch.cluster.nodes import Reservation, check_nodes, join_cluster
from launch.cluster.settings import Placement

READY_S = 2.0


class Probe:
    def where(self) -> tuple[str, str | None]:
        return ray.util.get_node_ip_address(), os.environ.get("CUDA_VISIBLE_DEVICES")


def place_ranks(num_ranks: int, gpus: int, placement: str) -> list[tuple[str, str | None]]:
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


def check_unseen_checkpoint() -> None:
    reservation = Reservation(Demand(2, 1.0, 0, Placement.spread))
    try:
        reservation.wait(READY_S)
        check_nodes(reservation, "/nowhere/model", ready_s=60.0)
    finally:
        reservation.release()


def message_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def main(address: str) -> None:
    join_cluster(address)
    found: dict[str, Any] = {placement.value: place_ranks(2, 0, placement.value) for placement in Placement}
    found["gpus"] = place_ranks(2, 1, "pack")
    found["too many GPUs"] = message_of(lambda: place_ranks(4, 1, "pack"))
    found["too many nodes"] = message_of(lambda: place_ranks(4, 0, "strict_spread"))
    found["unseen checkpoint"] = message_of(check_unseen_checkpoint)
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
