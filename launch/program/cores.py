"""Which cores this process runs on (those next to its GPU, so that its host work does not cross between sockets), and
with how many threads.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from parallel.mesh import Mesh, ParallelSettings

log = logging.getLogger("lookahead")

SYSTEM = Path("/sys/bus/pci/devices")


def take_cores(mesh: Mesh, settings: ParallelSettings) -> None:
    """Pins this process if it is to be pinned, and sets its number of threads."""
    if settings.pin:
        pin_near(mesh.device)
    set_threads(mesh, settings.threads)


def pin_near(device: torch.device, system: Path = SYSTEM) -> None:
    """Makes this process run on the usable cores next to its GPU. It does nothing for a CPU, or where they are unknown.

    system: where Linux describes the devices on the PCI bus.
    """
    if device.type != "cuda" or not hasattr(os, "sched_setaffinity"):
        return
    try:
        near = _cores((system / _address(device) / "local_cpulist").read_text())
    except (OSError, ValueError):  # not Linux as we know it, or a container that does not show its devices
        return
    usable = os.sched_getaffinity(0)
    if near & usable and near & usable != usable:
        os.sched_setaffinity(0, near & usable)
        log.info(
            "on %d of %d cores, those next to %s (parallel.pin=false uses all)", len(near & usable), len(usable), device
        )


def set_threads(mesh: Mesh, threads: int | None) -> None:
    """Sets torch's number of threads.

    threads: None divides the usable cores among the ranks of this host. A rank that is alone on its host keeps the
    number in OMP_NUM_THREADS. Several ranks ignore that variable, because torchrun itself sets it to 1 for them.
    """
    if threads is None and mesh.num_local_ranks == 1 and os.environ.get("OMP_NUM_THREADS"):
        return  # torch has read it already
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(threads or max(1, cores // mesh.num_local_ranks))


def _address(device: torch.device) -> str:
    """The GPU's address on the PCI bus as Linux writes it, such as 0000:3b:00.0."""
    known = torch.cuda.get_device_properties(device)
    return f"{known.pci_domain_id:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"


def _cores(text: str) -> set[int]:
    """The cores of a list such as "0-3,8,10-11". Raises ValueError for another text."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
