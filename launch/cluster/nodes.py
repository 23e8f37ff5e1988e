"""The nodes of a Ray cluster: joins it, reserves what a group of ranks needs, and checks the nodes that got it.

A node must have the same versions as this one, and must see the checkpoint.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ray
from ray.exceptions import AuthenticationError, GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launch.cluster.demand import Demand
from launch.config.resources import PACKAGE

log = logging.getLogger("lookahead")

# Seconds within which a cluster's address must accept a connection. Ray itself would try for minutes.
ANSWER_S = 5.0
# Seconds between two looks at whether the bundles are placed.
LOOK_S = 1.0
# Packages that must have the same version on all ranks, or their tokens could differ.
COMPARED = ("torch", "transformers", "tokenizers", "numpy")


def join_cluster(address: str) -> None:
    """Makes this process a driver of the cluster. Raises ValueError with one message for the user."""
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if where != "auto":
        _check_answers(where)
    try:
        # Ray lets its workers import from the folder that is current now: the one that holds this code, so that none
        # takes a launch.py or an lp.py of the user's folder for it.
        with chdir(PACKAGE.parent):
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except AuthenticationError:
        raise ValueError(_refusal(where)) from None
    except ConnectionError as error:
        if where == "auto":
            raise ValueError(
                "no Ray cluster was found on this machine: start one (ray start --head), submit this as a job "
                "(ray job submit), or give ray.address=HOST:PORT"
            ) from error
        raise ValueError(_refusal(where)) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        versions = " ".join(str(error).replace("Version mismatch:", "").split())
        raise ValueError(f"the cluster at {where} runs other versions: {versions}. Use the same here") from None


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"ray.address={address!r} is not of the form HOST:PORT; use auto for the cluster of this node")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster answers at ray.address={address} ({error}): check that it runs and that this "
            "machine can reach its port"
        ) from error


def _refusal(address: str) -> str:
    return (
        f"the cluster at {address} did not let this program in: if it asks for a token, set RAY_AUTH_MODE=token and "
        "RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's own; otherwise check that ray.address is the "
        "address of a Ray cluster's head"
    )


@dataclass(frozen=True)
class Resources:
    """What a cluster has. nodes: the total of each node that is alive. free: what they have free now, all together."""

    nodes: list[dict[str, float]]
    free: Mapping[str, float]


def read_resources() -> Resources:
    return Resources([node["Resources"] for node in ray.nodes() if node["Alive"]], ray.available_resources())


@dataclass(frozen=True)
class Node:
    """What one node has. sees_checkpoint: None for a hub id, which each node looks up by itself."""

    address: str
    versions: Mapping[str, str]
    sees_checkpoint: bool | None


def inspect_node(checkpoint: str) -> Node:
    """Describes the node on which this runs."""
    versions = {"Python": platform.python_version(), "ray": ray.__version__}
    for package in COMPARED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    is_there = Path(checkpoint).exists() if os.path.isabs(checkpoint) else None
    return Node(ray.util.get_node_ip_address(), versions, is_there)


def absolute_name(name: str) -> str:
    """The name of a checkpoint or file for all nodes: the absolute path of a local one; a hub id stays as it is."""
    path = os.path.expanduser(name)
    return os.path.abspath(path) if os.path.exists(path) or path.startswith((".", "/")) else name


class Reservation:
    """The bundles of a group of ranks. If a node is lost, Ray moves its bundles to other nodes that have room."""

    def __init__(self, demand: Demand):
        self.demand = demand
        self._group: PlacementGroup = placement_group(
            [demand.bundle] * demand.num_ranks, strategy=str(demand.placement).upper()
        )

    def wait(self, ready_s: float) -> None:
        """Waits for the resources. After `ready_s` seconds raises ValueError with what is missing."""
        self._wait(ready_s, until_possible=False)

    def queue(self, ready_s: float) -> None:
        """Waits for the resources as long as others use them. After `ready_s` seconds raises ValueError if the cluster
        is too small even when nothing else runs on it.
        """
        self._wait(ready_s, until_possible=True)

    def _wait(self, ready_s: float, until_possible: bool) -> None:
        deadline = time.monotonic() + ready_s
        has_said = False
        while not self._group.wait(LOOK_S):
            now = read_resources()
            if time.monotonic() > deadline and not (until_possible and self.demand.misfit(now.nodes) is None):
                self.release()
                raise ValueError(self.demand.shortage(now.nodes, now.free, ready_s))
            if not has_said:
                log.info("waiting for resources: %s", self.demand)
                has_said = True

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """The scheduling strategy that puts a task or an actor into the rank's bundle."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)

    def nodes(self) -> list[str]:
        """The id of each rank's node; an empty string while the rank has none."""
        placed = placement_group_table(self._group)["bundles_to_node_id"]
        return [placed.get(rank, "") for rank in range(self.demand.num_ranks)]

    def release(self) -> None:
        """Releases all bundles. Ray kills what still runs in them."""
        if ray.is_initialized():
            remove_placement_group(self._group)


def check_nodes(reservation: Reservation, checkpoint: str, ready_s: float) -> None:
    """Compares this node and the nodes of all ranks. Raises ValueError with one message for the user."""
    one_rank_per_node = {node: rank for rank, node in enumerate(reservation.nodes())}.values()
    task = ray.remote(num_cpus=0, max_retries=0)(inspect_node)
    answers = [
        task.options(scheduling_strategy=reservation.strategy(rank)).remote(checkpoint) for rank in one_rank_per_node
    ]
    try:
        nodes = ray.get(answers, timeout=ready_s)
    except GetTimeoutError:
        raise ValueError(
            f"the nodes of the ranks did not answer within ray.ready_s={ready_s:g} s: look into the cluster's logs, "
            "or give them more time"
        ) from None
    except RayTaskError as error:
        raise ValueError(
            f"a node of the cluster cannot run lookahead-parallel ({shorten_ray_error(error)}): install the same "
            "version there, or submit the job with --working-dir and the checkout"
        ) from error
    except RayError as error:
        raise ValueError(f"a node was lost before its rank could start: {shorten_ray_error(error)}") from error
    compare_nodes([inspect_node(checkpoint), *nodes], checkpoint)


def compare_nodes(nodes: Sequence[Node], checkpoint: str) -> None:
    """Raises ValueError if versions differ between the nodes, or if one does not see the checkpoint."""
    blind = sorted({node.address for node in nodes if node.sees_checkpoint is False})
    if blind:
        raise ValueError(
            f"model.path={checkpoint} is not there on {' and '.join(blind)}: every rank reads the checkpoint "
            "itself, so put it where all nodes see it under this path, or give a hub id"
        )
    for package in nodes[0].versions:
        found: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            public, _, _ = node.versions.get(package, "none").partition("+")  # after the + comes the build: CPU or CUDA
            found[public].append(node.address)
        if len(found) > 1:
            named = ", ".join(f"{number} on {' and '.join(sorted(set(where)))}" for number, where in found.items())
            raise ValueError(f"the nodes have different versions of {package}: {named}; use the same version on all")


def is_alive(node: str) -> bool:
    """Whether the cluster takes the node with this id for alive."""
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())


def shorten_ray_error(error: BaseException) -> str:
    """Why an actor died, without Ray's list of common causes; for other errors the last line, which follows any
    traceback.
    """
    text = str(error).strip()
    found = re.search(r"^The actor (?:is dead|died) because (.+?)(?:\. |\.?$)", text, re.MULTILINE)
    return found[1] if found else text.splitlines()[-1].strip()
