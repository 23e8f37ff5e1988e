"""A process group of torch.distributed that reports its failures as RankLost and leaves no rank waiting.

It does not touch torch's default group. Knows nothing of what is sent.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from parallel.comm.base import IsOver, never
from parallel.comm.peers import find_missing_ranks
from parallel.comm.spin_wait import wait_for
from parallel.errors import EpochOver, RankLost, name_ranks

_NCCL_LAST_RESORT_S = 30.0  # how long NCCL's watchdog, which ends the process without a message, waits after us
_POLL_S = 20e-6
# The most collectives that the host launches ahead of a GPU. Its queue holds about a thousand kernels, and a full one
# stops the host, which could not see then that a rank is lost.
MOST_AHEAD = 8
_LEAVING_S = 5.0  # how long a rank waits for NCCL to end, which it may not do beside a rank that is lost
_MOST_UNSENT = 32  # messages that are kept at most because they may not have left yet

_Result = TypeVar("_Result")


class ProcessGroup(Protocol):
    """The part of torch's ProcessGroupGloo and ProcessGroupNCCL that is used here; torch's type stubs leave it out."""

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> c10d.Work: ...

    def allreduce(self, tensors: list[Tensor], options: Any) -> c10d.Work: ...

    def broadcast(self, tensors: list[Tensor], options: Any) -> c10d.Work: ...

    def send(self, tensors: list[Tensor], to: int, tag: int) -> c10d.Work: ...

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> c10d.Work: ...

    def abort(self) -> None: ...


class GuardedGroup:
    """A process group of some ranks of the run. All of them construct it at the same time with the same Store.

    The Store must live as long as the group. ranks: who takes part, as the run counts them. backend: "gloo" or "nccl".
    device: where tensors lie for NCCL; for gloo they lie on the CPU. timeout_s: seconds that a collective waits for the
    others. is_over: passed where somebody else finds out which ranks are lost; without it, a failure is followed by a
    roll call. Raises RankLost if the others do not come, and EpochOver.
    """

    def __init__(
        self,
        store: Store,
        ranks: list[int],
        rank: int,
        backend: str,
        device: torch.device,
        timeout_s: float,
        is_over: IsOver = never,
    ) -> None:
        self.ranks = ranks
        self.rank = ranks.index(rank)
        self.timeout_s = timeout_s
        self.device = device if backend == "nccl" else torch.device("cpu")
        self._store = store
        self._is_over = is_over
        self._unsent: deque[tuple[c10d.Work, Tensor]] = deque()
        self._ahead: deque[torch.cuda.Event] = deque()
        self._group: ProcessGroup | None = None
        first = torch.zeros(1, device=self.device)
        self._group = self._guard(lambda: self._in_thread(lambda: self._meet(backend, first)))
        self.settle()

    # On a GPU a collective is only launched: `settle` waits for it, and work on the same stream comes after it.

    def all_gather(self, tensor: Tensor, timeout_s: float | None = None) -> Tensor:
        """Returns the tensors of all ranks, which have one shape, as [ranks, *shape] on this group's device."""
        gathered = torch.empty((len(self.ranks), *tensor.shape), dtype=tensor.dtype, device=self.device)
        options = c10d.AllgatherOptions()
        self._run(lambda group: group.allgather([list(gathered.unbind())], [tensor], options), options, timeout_s)
        return gathered

    def all_reduce(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over the ranks."""
        options = c10d.AllreduceOptions()
        self._run(lambda group: group.allreduce([tensor], options), options)

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites the tensor with the first rank's."""
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        self._run(lambda group: group.broadcast([tensor], options), options)

    def receive(self, tensor: Tensor, source: int) -> None:
        """Overwrites the tensor with the next one that the group's rank `source` has sent to this rank."""
        self._run(lambda group: group.recv([tensor], source, 0), None)

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends a copy to the group's rank `to`. Waits only for earlier messages, and only if too many are kept."""
        kept = tensor.clone()
        self._guard(lambda: self._unsent.append((self._open().send([kept], to, 0), kept)))
        while self._unsent and (self._unsent[0][0].is_completed() or len(self._unsent) > _MOST_UNSENT):
            self._guard(self._await_oldest_message)

    def settle(self, timeout_s: float | None = None) -> None:
        """Waits until everything that was launched on a GPU has been done. Raises RankLost, and EpochOver."""
        if self.device.type == "cuda":
            self._guard(lambda: self._wait_for(self._mark(), self.timeout_s if timeout_s is None else timeout_s))
            self._ahead.clear()

    def close(self) -> None:
        """Leaves the group once every message has left; may be called twice."""
        with suppress(RankLost):  # a rank that is lost needs no message
            while self._unsent:
                self._guard(self._await_oldest_message)
        self._leave()

    def _abandon(self, wait_s: float = 0.0, is_aborted: bool = True) -> None:
        """Leaves at once. A thread gives the group up, as one with a collective under way ends only at its timeout.

        wait_s: seconds to wait for that. is_aborted: whether a GPU's collectives are stopped first.
        """
        leaving = _Leaving(self._group, self._unsent, is_aborted and self.device.type == "cuda")
        self._group, self._unsent = None, deque()
        thread = threading.Thread(target=leaving.run, daemon=True)
        thread.start()
        thread.join(wait_s)

    def _leave(self) -> None:
        if self._group is not None and self.device.type == "cuda":
            self._abandon(_LEAVING_S, is_aborted=False)
        self._unsent.clear()  # a message keeps the connections open, too
        self._group = None

    def _await_oldest_message(self) -> None:
        """Waits until the oldest message has left."""
        self._finish(self._unsent[0][0], self.timeout_s)
        self._unsent.popleft()

    def _run(
        self, collective: Callable[[ProcessGroup], c10d.Work], options: Any, timeout_s: float | None = None
    ) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        if options is not None:
            options.timeout = timedelta(seconds=limit_s)
        self._guard(lambda: self._finish(collective(self._open()), limit_s))

    def _open(self) -> ProcessGroup:
        assert self._group is not None, "this group is closed"
        return self._group

    def _finish(self, work: c10d.Work, timeout_s: float) -> None:
        """Waits on the host for gloo's collective, which watches the time limit itself. On a GPU, the stream waits."""
        if self._is_over is not never:
            wait_for(work.is_completed, self._check_epoch)  # a wait inside torch could not be given up
        work.wait()
        if self.device.type == "cuda":
            self._ahead.append(self._mark())
            if len(self._ahead) > MOST_AHEAD:
                self._wait_for(self._ahead.popleft(), timeout_s)

    def _mark(self) -> torch.cuda.Event:
        """An event that is over when everything launched so far has been done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _wait_for(self, event: torch.cuda.Event, timeout_s: float) -> None:
        """Waits on the host, with a limit that a plain synchronisation does not have."""
        deadline = time.monotonic() + timeout_s
        while not event.query():
            self._check_epoch()
            if time.monotonic() > deadline:
                raise RuntimeError(f"NCCL timed out after {timeout_s:g} s")
            time.sleep(_POLL_S)

    def _check_epoch(self) -> None:
        if self._is_over():
            raise EpochOver

    def _meet(self, backend: str, first: Tensor) -> ProcessGroup:
        """Makes the group, and its connections by a first collective. Both may wait long for the other ranks."""
        group = _make_group(PrefixStore(backend, self._store), self.rank, len(self.ranks), backend, self.timeout_s)
        options = c10d.AllreduceOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        try:
            group.allreduce([first], options).wait()
        except RuntimeError:
            del group  # the error's traceback would keep it alive, and with it the others waiting
            raise
        return group

    def _in_thread(self, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returns, unless the epoch is over first, or it takes too long."""
        made: Future[_Result] = Future()
        threading.Thread(target=_fulfil, args=(made, make), daemon=True).start()
        limit_s = self.timeout_s + _NCCL_LAST_RESORT_S
        try:
            wait_for(made.done, self._check_epoch, limit_s)
        except TimeoutError:
            raise RuntimeError(f"the ranks were not connected within {limit_s:g} s") from None
        return made.result()

    def _guard(self, attempt: Callable[[], _Result]) -> _Result:
        """Attempts something that needs all ranks and turns its failure into RankLost."""
        try:
            return attempt()
        except EpochOver:
            self._abandon()
            raise
        except RuntimeError as error:
            reason = str(error)
        # Outside the handler: there, the error's traceback would keep the group alive, which must be closed first.
        raise self._lost(reason)

    def _lost(self, reason: str) -> RankLost:
        """Closes the connections, so that ranks waiting for this one notice the loss too, and calls the roll."""
        if self._is_over is not never:
            self._abandon()
            return RankLost(f"a collective failed: {reason.splitlines()[0]}")
        if self.device.type == "cuda":
            self._abandon(_LEAVING_S)
        self._leave()
        missing = tuple(self.ranks[place] for place in find_missing_ranks(self._store, self.rank, len(self.ranks)))
        cause = reason.splitlines()[0]
        if not missing:
            return RankLost(
                "a collective failed although every rank is alive: either a rank was late or the network failed "
                f"({cause}). If a step may take that long, raise parallel.timeout_s."
            )
        return RankLost(
            f"{name_ranks(missing)} lost: no answer to the roll call after a failed collective ({cause}). See that "
            "rank's own output for the cause, then start the run again; if it is only slow, raise parallel.timeout_s.",
            missing,
        )


def _make_group(store: Store, rank: int, num_ranks: int, backend: str, timeout_s: float) -> ProcessGroup:
    if backend == "gloo":
        return cast(ProcessGroup, c10d.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_s)))
    # Failures are noticed here and reported with the rank; without this, NCCL's watchdog would abort the process first.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s + _NCCL_LAST_RESORT_S)
    return cast(ProcessGroup, c10d.ProcessGroupNCCL(store, rank, num_ranks, options))


class _Leaving:
    """The last reference to a group, which its thread gives up: there, waiting for the group's end does no harm."""

    def __init__(self, group: ProcessGroup | None, unsent: deque[tuple[c10d.Work, Tensor]], is_aborted: bool) -> None:
        self.group, self.unsent, self.is_aborted = group, unsent, is_aborted

    def run(self) -> None:
        if self.group is not None and self.is_aborted:
            self.group.abort()
        self.unsent.clear()
        self.group = None


def _fulfil(future: Future[_Result], make: Callable[[], _Result]) -> None:
    try:
        future.set_result(make())
    except RuntimeError as error:
        future.set_exception(error)
