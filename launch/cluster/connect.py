"""Joins a Ray cluster and reads what resources it has."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass

import ray
from ray.exceptions import AuthenticationError

from launch.config.resources import PACKAGE

# Seconds within which a cluster's address must accept a connection. Ray itself would try for minutes.
ANSWER_S = 5.0


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
