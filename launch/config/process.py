"""Prepares a program's own process (memory, cores, threads, logging); turns its errors into messages and exit codes."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from transformers.utils import logging as transformers_logging

from launch import USUAL_THRESHOLDS
from launch.config import configuration
from launch.config.configuration import UsageError
from launch.config.memory import keep_memory
from lp.platform.processor import num_cores
from parallel.errors import RankLost, StateDiverged
from parallel.mesh import Mesh, ParallelSettings, read_rank

log = logging.getLogger("lookahead")
Settings = TypeVar("Settings")

# Seconds that a rank other than 0 waits before it reports an error.
GRACE_S = 5.0


def freeze_heap(collect: bool = True) -> None:
    """Tells Python's garbage collector to ignore the objects that exist now, until the program ends.

    A model and its libraries consist of hundreds of thousands of objects. Examining all of them takes tenths of a
    second and would interrupt a text. They are released at the end, because some libraries (triton 3.9) print a long
    report of the objects that are left then.

    collect: whether to release garbage first. There is next to none when only libraries have been imported.
    """
    if collect:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)
    atexit.register(gc.unfreeze)


def set_logging(rank: int) -> None:
    """Sends messages to standard error. Rank 0 logs all messages; other ranks log only errors."""
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.ERROR,
        format="%(message)s" if rank == 0 else f"rank {rank}: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    for chatty in ("httpx", "hydra"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def follow_quietly() -> None:
    """Ignores signals, on a rank other than 0: rank 0 handles them and tells the others when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def out_of_memory(error: torch.cuda.OutOfMemoryError) -> str:
    """Returns the message for the user."""
    gist = str(error).partition(" GPU ")[0]  # figures and advice for programmers follow
    return f"{gist} Use model.dtype=bfloat16, a GPU with more memory or a smaller model."


def _let_rank_0_speak() -> None:
    """Waits, so that rank 0 can report an error first. Usually all ranks meet the same error.

    torchrun ends the other ranks once rank 0 has ended, so that the message appears once.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(GRACE_S)


def main(
    name: str,
    schema: type[Settings],
    run: Callable[[Settings], int],
    usage: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs a program with the settings of the command line and returns the exit code.

    An error that the user can fix is reported in one message. 0: done. 1: a rank was lost or the ranks diverged. 2:
    settings, prompts or files cannot be used, or the GPU has too little memory. 130: Ctrl-C while loading. Once the
    model is loaded, `run` decides the exit code.
    """
    freeze_heap(collect=False)  # what was imported stays
    rank = read_rank()
    set_logging(rank)
    keep_memory()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if configuration.asks_for_help(arguments):
        if rank == 0:
            configuration.print_help(name, usage)
        return 0
    try:
        return run(configuration.load(name, schema, arguments))
    except UsageError as error:
        if rank == 0:
            log.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        log.info("interrupted")
        return 128 + signal.SIGINT
    except torch.cuda.OutOfMemoryError as error:
        if rank != 0:
            _let_rank_0_speak()
        log.error("error: %s", out_of_memory(error))
        log.debug("where it happened", exc_info=error)
        return 2
    except (ValueError, OSError) as error:
        if rank != 0:
            _let_rank_0_speak()
        log.error("error: %s", error)
        log.debug("where it happened", exc_info=error)
        return 2
    except (RankLost, StateDiverged) as error:
        log.error("error: %s", error)
        return 1


PCI_DEVICES = Path("/sys/bus/pci/devices")


def take_cores(mesh: Mesh, settings: ParallelSettings) -> None:
    """Pins this process if it is to be pinned, and sets its number of threads."""
    if settings.pin:
        pin_near(mesh.device)
    set_threads(mesh, settings.threads)


def pin_near(device: torch.device, system: Path = PCI_DEVICES) -> None:
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
    torch.set_num_threads(threads or max(1, num_cores() // mesh.num_local_ranks))


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
