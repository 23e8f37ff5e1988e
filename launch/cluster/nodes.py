"""Checks that the nodes of a cluster have the same versions and see the checkpoint before ranks run on them."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from launch.cluster.errors import shorten_ray_error
from launch.cluster.reservation import Reservation

# Packages that must have the same version on all ranks, or their tokens could differ.
COMPARED = ("torch", "transformers", "tokenizers", "numpy")


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
