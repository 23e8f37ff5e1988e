"""What a program does to its own process: memory allocator, threads, logging, and how it ends."""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from transformers.utils import logging as transformers_logging

from launch.program import configuration
from launch.program.configuration import UsageError
from parallel.errors import RankLost, StateDiverged
from parallel.mesh import Mesh, read_rank

log = logging.getLogger("lookahead")
Settings = TypeVar("Settings")

GRACE_S = 5.0
"""How long a rank other than 0 keeps an error to itself."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_KEPT_BYTES = 256 << 20


def keep_memory() -> None:
    """Tells glibc to keep freed blocks; giving them back and faulting them in again costs more than a step's work."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    for option, value in ((_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, _KEPT_BYTES), (_M_MMAP_MAX, 0)):
        mallopt(option, value)


def freeze_heap() -> None:
    """Tells Python's garbage collector to leave alone what is there: a model and its libraries are hundreds of
    thousands of objects, and looking at all of them takes tenths of a second in the midst of a text. Not for ever:
    some libraries (triton 3.9) report whatever is left at the program's end, at length.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def set_threads(mesh: Mesh, threads: int | None) -> None:
    """Shares the cores this process may use among the ranks of its host, unless told how many threads to use.

    OMP_NUM_THREADS tells a rank that is alone on its host; for several, torchrun sets it to 1 by itself.
    """
    if threads is None and mesh.num_local_ranks == 1 and os.environ.get("OMP_NUM_THREADS"):
        return  # torch has heeded it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(threads or max(1, cores // mesh.num_local_ranks))


def set_logging(rank: int) -> None:
    """Messages go to standard error, rank 0's alone; other ranks only report errors."""
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
    """On ranks other than 0: signals are for rank 0, which tells the others when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def out_of_memory(error: torch.cuda.OutOfMemoryError) -> str:
    """The message for the user."""
    gist = str(error).partition(" GPU ")[0]  # what follows are figures and advice for programmers
    return f"{gist} Use model.dtype=bfloat16, a GPU with more memory or a smaller model."


def _let_rank_0_speak() -> None:
    """Mostly every rank meets the same error, and rank 0's word is enough: torchrun ends the others after it."""
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
    """Runs a program: settings from the command line, one message for what the user can mend, an exit code.

    0: done. 1: a rank was lost or the ranks diverged. 2: settings, prompts or files that cannot be used, or too little
    memory on the GPU. 130: Ctrl-C while loading; after that, `run` says.
    """
    rank = read_rank()
    set_logging(rank)
    keep_memory()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        if rank == 0:
            print(f"{usage.strip()}\n\n{configuration.describe(name)}")
        return 0
    try:
        return run(configuration.load(name, schema, arguments))
    except UsageError as error:
        if rank == 0:
            log.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
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
