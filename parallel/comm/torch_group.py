"""The process groups of torch.distributed that are used here: their face, how one is made, and how one is given up.

It does not touch torch's default group.
"""

from __future__ import annotations

import os
from collections import deque
from datetime import timedelta
from typing import Any, Protocol, cast

from torch import Tensor
from torch.distributed import Store
from torch.distributed import distributed_c10d as c10d

LAST_RESORT_S = 30.0  # how long NCCL's watchdog, which ends the process without a message, waits after us


class ProcessGroup(Protocol):
    """The part of torch's ProcessGroupGloo and ProcessGroupNCCL that is used here; torch's type stubs leave it out.

    A collective of NCCL's that runs on the current stream returns None.
    """

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> c10d.Work | None: ...

    def _allgather_base(self, output: Tensor, input: Tensor, options: Any) -> c10d.Work | None: ...

    def allreduce(self, tensors: list[Tensor], options: Any) -> c10d.Work | None: ...

    def broadcast(self, tensors: list[Tensor], options: Any) -> c10d.Work | None: ...

    def send(self, tensors: list[Tensor], to: int, tag: int) -> c10d.Work: ...

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> c10d.Work: ...

    def abort(self) -> None: ...


def make_group(store: Store, rank: int, num_ranks: int, backend: str, timeout_s: float) -> ProcessGroup:
    """A group whose collectives wait up to `timeout_s` seconds. backend: "gloo" or "nccl". Raises RuntimeError."""
    if backend == "gloo":
        return cast(ProcessGroup, c10d.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_s)))
    # Failures are noticed here and reported with the rank; without this, NCCL's watchdog would abort the process first.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s + LAST_RESORT_S)
    return cast(ProcessGroup, c10d.ProcessGroupNCCL(store, rank, num_ranks, options))


class Leaving:
    """The last reference to a group, which its thread gives up: there, waiting for the group's end does no harm.

    is_aborted: whether the collectives of a GPU are stopped first.
    """

    def __init__(self, group: ProcessGroup | None, unsent: deque[tuple[c10d.Work, Tensor]], is_aborted: bool) -> None:
        self.group, self.unsent, self.is_aborted = group, unsent, is_aborted

    def run(self) -> None:
        if self.group is not None and self.is_aborted:
            self.group.abort()
        self.unsent.clear()
        self.group = None
