"""A Ray cluster of simulated nodes, as a process of its own: Ray reads its environment when it is imported.

    python -m tests.launch.cluster.host FOLDER DASHBOARD_PORT CORES,CORES,... GPUS,GPUS,...

DASHBOARD_PORT: 0 for a cluster that takes no jobs. Writes one JSON value a line and reads one command a line: first the
cluster's address; then what is left (`left`), or that a node was killed (`remove IP`). The end of its input ends it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray prints what it thinks worth knowing
COMMON = {"object_store_memory": 80_000_000, "include_dashboard": False}
"""The least that Ray takes is 75 MB."""


def main(folder: str, dashboard_port: int, cores: list[int], gpus: list[int]) -> None:
    # 127.0.0.1 itself Ray would replace by an address that other machines can reach.
    head: dict[str, Any] = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "temp_dir": folder, **COMMON}
    if dashboard_port:
        head |= {"include_dashboard": True, "dashboard_host": "127.0.0.2", "dashboard_port": dashboard_port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = {}
        for number, count in enumerate(cores):
            place = {"node_ip_address": f"127.0.0.{number + 3}", "num_cpus": count, "num_gpus": gpus[number]}
            nodes[place["node_ip_address"]] = cluster.add_node(**place, wait=False, **COMMON)
        cluster.wait_for_nodes(60)
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
        say(cluster.address)
        for line in sys.stdin:
            match line.split():
                case ["remove", address]:
                    cluster.remove_node(nodes.pop(address), allow_graceful=False)
                    say(address)
                case ["left"]:
                    say(left())
    finally:
        ray.shutdown()
        cluster.shutdown()


def left() -> dict[str, Any]:
    """What is reserved at the moment: cores and GPUs, and placement groups by their state."""
    whole, free = ray.cluster_resources(), ray.available_resources()
    groups = [group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {"used": sum(whole.get(kind, 0) - free.get(kind, 0) for kind in ("CPU", "GPU")), "groups": groups}


def say(value: Any) -> None:
    ANSWERS.write(json.dumps(value) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *([int(number) for number in group.split(",")] for group in sys.argv[3:]))
