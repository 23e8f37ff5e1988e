"""What the nodes of a cluster have to have in common before ranks can run on them: versions, and the checkpoint."""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from launch.cluster.reservation import Reservation

COMPARED = ("torch", "transformers", "tokenizers", "numpy")
"""Packages of which all ranks must have the same version, for their tokens to be the same."""


@dataclass(frozen=True)
class Node:
    """What one node says of itself. sees_checkpoint: None if that is a hub id, which each node looks up by itself."""

    address: str
    versions: Mapping[str, str]
    sees_checkpoint: bool | None


def look(checkpoint: str) -> Node:
    """This node."""
    versions = {"Python": platform.python_version(), "ray": ray.__version__}
    for package in COMPARED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    folder = Path(checkpoint).is_dir() if os.path.isabs(checkpoint) else None
    return Node(ray.util.get_node_ip_address(), versions, folder)


def absolute(name: str) -> str:
    """What to call a checkpoint or a file on every node: one that is here by its whole path, a hub id as it is."""
    path = os.path.expanduser(name)
    return os.path.abspath(path) if os.path.exists(path) or path.startswith((".", "/")) else name


def check(reservation: Reservation, checkpoint: str, ready_s: float) -> None:
    """Asks this node and that of each rank. Raises ValueError with one message for the user."""
    places = {node: rank for rank, node in enumerate(reservation.nodes())}
    ask = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = [ask.options(scheduling_strategy=reservation.strategy(rank)).remote(checkpoint) for rank in places.values()]
    try:
        nodes = ray.get(asked, timeout=ready_s)
    except GetTimeoutError:
        raise ValueError(
            f"the nodes of the ranks did not answer within ray.ready_s={ready_s:g} s: see the cluster's own logs, or "
            "give them longer"
        ) from None
    except RayTaskError as error:
        raise ValueError(
            f"a node of the cluster cannot run lookahead-parallel ({in_short(error)}): install it there in the same "
            "version, or submit the job with --working-dir and the checkout"
        ) from error
    except RayError as error:
        raise ValueError(f"a node was lost before its rank could start: {in_short(error)}") from error
    compare([look(checkpoint), *nodes], checkpoint)


def compare(nodes: Sequence[Node], checkpoint: str) -> None:
    """Raises ValueError if the nodes differ in what their ranks need, or do not see the checkpoint."""
    blind = sorted({node.address for node in nodes if node.sees_checkpoint is False})
    if blind:
        raise ValueError(
            f"model.path={checkpoint} is not a folder on {' and '.join(blind)}: every rank reads the checkpoint by "
            "itself, so put it where all nodes see it under this path, or give a hub id"
        )
    for package in nodes[0].versions:
        found: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            public, _, _ = node.versions.get(package, "none").partition("+")  # what follows is the build: CPU, CUDA
            found[public].append(node.address)
        if len(found) > 1:
            named = ", ".join(f"{number} on {' and '.join(sorted(set(where)))}" for number, where in found.items())
            raise ValueError(f"the nodes have different versions of {package}: {named}; use the same on all")


def is_alive(node: str) -> bool:
    """Whether the cluster still counts on the node with this id."""
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())


def in_short(error: BaseException) -> str:
    """What an error of Ray's comes down to: why an actor is gone, without what may kill any process; or else the last
    line, as a traceback may precede it.
    """
    text = str(error).strip()
    found = re.search(r"^The actor (?:is dead|died) because (.+?)(?:\. |\.?$)", text, re.MULTILINE)
    return found[1] if found else text.splitlines()[-1].strip()
