"""Runs a Ray cluster of simulated nodes in a process of its own, because Ray reads its environment when it is imported.

    RAY_TMPDIR=FOLDER python -m tests.launch.cluster.host DASHBOARD_PORT CORES,CORES,... GPUS,GPUS,...

RAY_TMPDIR: an existing folder. Ray writes everything below it, also the file that names the machine's current cluster;
so the tests neither need nor change what lies in /tmp/ray. DASHBOARD_PORT: 0 for a cluster that takes no jobs.

The process first writes the cluster's address. Then it reads one command a line and answers each with one JSON value a
line: `left` with what is still reserved, `remove IP` with the address once that node is killed. It ends with its input.
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
os.dup2(2, 1)  # Ray prints to standard output, where only answers may appear
# Ray wants at least 75 MB.
COMMON = {"object_store_memory": 80_000_000, "include_dashboard": False}


def main(dashboard_port: int, cores: list[int], gpus: list[int]) -> None:
    # Ray would replace 127.0.0.1 by an address that other machines can reach.
    head: dict[str, Any] = {"num_cpus": 0, "node_ip_address": "127.0.0.2", **COMMON}
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
        answer(cluster.address)
        for line in sys.stdin:
            match line.split():
                case ["remove", address]:
                    cluster.remove_node(nodes.pop(address), allow_graceful=False)
                    answer(address)
                case ["left"]:
                    answer(reserved())
    finally:
        ray.shutdown()
        cluster.shutdown()


def reserved() -> dict[str, Any]:
    """The number of cores and GPUs that are reserved now, and the states of the placement groups."""
    whole, free = ray.cluster_resources(), ray.available_resources()
    groups = [group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {"used": sum(whole.get(kind, 0) - free.get(kind, 0) for kind in ("CPU", "GPU")), "groups": groups}


def answer(value: Any) -> None:
    ANSWERS.write(json.dumps(value) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), *([int(number) for number in amounts.split(",")] for amounts in sys.argv[2:]))
