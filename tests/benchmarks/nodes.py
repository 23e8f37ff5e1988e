"""Two nodes on this machine: network namespaces that a cable joins, each with host name, processes and memory apart."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# A private range that nothing else should use.
SUBNET = "10.213.77"
# Sets a node up in namespaces of its own: its name, the hosts file, and memory that it shares with no other node.
SET_UP = 'hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && shift && exec "$@"'
APART = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]


@dataclass(frozen=True)
class Node:
    """A node. namespace: of its network. hosts: its hosts file, which names all nodes."""

    name: str
    address: str
    namespace: str
    hosts: Path

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs a program on the node."""
        inside = ["sh", "-c", SET_UP, self.name, str(self.hosts), *arguments]
        return ["ip", "netns", "exec", self.namespace, *APART, *inside]


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Two nodes that reach each other. Skips the test where they cannot be made. folder: for the hosts file."""
    missing = [name for name in ("ip", "unshare", "hostname", "mount") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    hosts = folder / "hosts"
    nodes = [Node(f"node{n}", f"{SUBNET}.{n + 1}", f"lookahead-{os.getpid()}-{n}", hosts) for n in range(2)]
    lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in nodes)]
    hosts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    made: list[Node] = []
    try:
        for node in nodes:
            _try_to("ip", "netns", "add", node.namespace)
            made.append(node)
        first, second = nodes
        _try_to(
            "ip", "link", "add", "veth0", "netns", first.namespace, "type", "veth",
            "peer", "name", "veth0", "netns", second.namespace,
        )  # fmt: skip
        for node in nodes:
            _try_to("ip", "-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                _try_to("ip", "-n", node.namespace, "link", "set", device, "up")
            _try_to(*node.command("true"))
        yield nodes
    finally:
        for node in made:  # the cable goes with its ends
            subprocess.run(["ip", "netns", "delete", node.namespace], check=False)


def _try_to(*command: str) -> None:
    """Runs a command. Skips the test if it is not permitted."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command[:4])}: {done.stderr.strip() or done.returncode}")
