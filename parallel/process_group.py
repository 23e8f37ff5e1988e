"""The exchange over torch.distributed, for ranks on several hosts: gloo, or NCCL when the ranks hold GPUs.

Only integer tensors travel, no pickled objects. It holds its own process group and leaves torch's default group alone.
Knows nothing of what the integers mean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from parallel.exchange import RankLost, name_ranks
from parallel.roll_call import missing_ranks

_NCCL_LAST_RESORT_S = 30.0  # NCCL's own watchdog would end the process without a message: it must come after us
_POLL_S = 20e-6

_Result = TypeVar("_Result")


class _Group(Protocol):
    """What is used of torch's ProcessGroupGloo and ProcessGroupNCCL, whose type stubs leave it out."""

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: c10d.AllgatherOptions
    ) -> c10d.Work: ...

    def broadcast(self, tensors: list[torch.Tensor], options: c10d.BroadcastOptions) -> c10d.Work: ...

    def abort(self) -> None: ...


class ProcessGroupExchange:
    """See `Exchange`. All ranks construct it at the same time with the same Store, which must live as long as this.

    backend: "gloo" or "nccl". device: where NCCL's buffers lie, this rank's GPU; gloo's lie on the CPU.
    timeout_s: seconds that a collective waits for the others. Raises RankLost if the others do not come.
    """

    def __init__(
        self, store: Store, rank: int, num_ranks: int, backend: str, device: torch.device, timeout_s: float
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.bytes_sent = 0
        self.num_collectives = 0
        self._store = store
        self._timeout_s = timeout_s
        self._device = device if backend == "nccl" else torch.device("cpu")
        self._group: _Group | None = None
        self._group = self._guard(lambda: _make_group(PrefixStore(backend, store), rank, num_ranks, backend, timeout_s))
        self.all_gather(np.array([rank], dtype=np.int32))  # connections are made at first use: better now
        self.bytes_sent = self.num_collectives = 0

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        assert mine.dtype == np.int32 and mine.ndim == 1, "an all-gather takes int32 [n]"
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        gathered = self._guard(lambda: self._all_gather(torch.from_numpy(mine), limit_s))
        self.bytes_sent += mine.nbytes
        self.num_collectives += 1
        return gathered.numpy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert (data is not None) == (self.rank == 0), "rank 0 and no other passes the bytes of a broadcast"
        length = len(data) if data is not None else 0
        total = int(self._guard(lambda: self._broadcast(torch.tensor([length]))))
        received = data or b""
        if total:
            buffer = bytearray(data) if data is not None else bytearray(total)
            tensor = torch.frombuffer(buffer, dtype=torch.uint8)
            received = self._guard(lambda: self._broadcast(tensor)).numpy().tobytes()
        self.bytes_sent += length
        self.num_collectives += 1
        return received

    def close(self) -> None:
        self._group = None

    def _all_gather(self, mine: torch.Tensor, timeout_s: float) -> torch.Tensor:
        gathered = torch.empty((self.num_ranks, mine.numel()), dtype=mine.dtype, device=self._device)
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=timeout_s)
        work = self._open_group().allgather([list(gathered.unbind())], [mine.to(self._device)], options)
        self._finish(work, timeout_s)
        return gathered.cpu()

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        on_device = tensor.to(self._device)
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=self._timeout_s)
        self._finish(self._open_group().broadcast([on_device], options), self._timeout_s)
        return on_device.cpu()

    def _open_group(self) -> _Group:
        assert self._group is not None, "this exchange is closed"
        return self._group

    def _finish(self, work: c10d.Work, timeout_s: float) -> None:
        """Waits for the collective on the host; gloo keeps the time itself."""
        work.wait()
        if self._device.type == "cuda":
            _wait_for_device(self._device, timeout_s)

    def _guard(self, attempt: Callable[[], _Result]) -> _Result:
        """Makes an attempt at something that needs all ranks and turns its failure into RankLost."""
        try:
            return attempt()
        except RuntimeError as error:
            reason = str(error)
        # Outside of the handler: the error's traceback would keep the group alive, which must go first of all.
        raise self._lost(reason)

    def _lost(self, reason: str) -> RankLost:
        """Closes the connections, so that ranks waiting for this one learn of the loss too, and calls the roll."""
        if self._group is not None and self._device.type == "cuda":
            self._group.abort()
        self._group = None
        missing = missing_ranks(self._store, self.rank, self.num_ranks)
        cause = reason.splitlines()[0]
        if not missing:
            return RankLost(
                f"a collective failed although every rank is alive: a rank was late or the "
                f"network failed ({cause}). If a step may take that long, raise parallel.timeout_s."
            )
        return RankLost(
            f"{name_ranks(missing)} lost: no answer to the roll call after a failed collective ({cause}). See that "
            "rank's own output for the cause, then start the run again; if it is only slow, raise parallel.timeout_s.",
            missing,
        )


def _make_group(store: Store, rank: int, num_ranks: int, backend: str, timeout_s: float) -> _Group:
    if backend == "gloo":
        return cast(_Group, c10d.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_s)))
    # Failures are noticed here and reported by name; without this, NCCL's watchdog would abort the process first.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s + _NCCL_LAST_RESORT_S)
    return cast(_Group, c10d.ProcessGroupNCCL(store, rank, num_ranks, options))


def _wait_for_device(device: torch.device, timeout_s: float) -> None:
    """Waits for the device's current stream, but not for ever, as a plain synchronisation would."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    deadline = time.monotonic() + timeout_s
    while not event.query():
        if time.monotonic() > deadline:
            raise RuntimeError(f"NCCL timed out after {timeout_s:g} s")
        time.sleep(_POLL_S)
