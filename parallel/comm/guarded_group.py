"""A process group of torch.distributed that reports its failures as RankLost and leaves no rank waiting.

It does not touch torch's default group. Knows nothing of what is sent.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from parallel.comm.base import IsOver, never
from parallel.comm.peers import LIVENESS_S, find_missing_ranks, wait_for
from parallel.comm.threads import start_thread
from parallel.errors import EpochOver, RankLost, name_ranks

_LEAVING_S = 5.0  # how long a rank waits for NCCL to end, which it may not do beside a rank that is lost
_MOST_UNSENT = 32  # messages that are kept at most because they may not have left yet

_Result = TypeVar("_Result")


class GuardedGroup:
    """A process group of some ranks of the run. All of them construct it at the same time with the same Store.

    The Store must live as long as the group. ranks: who takes part, as the run counts them. backend: "gloo" or "nccl".
    device: where tensors lie for NCCL; for gloo they lie on the CPU. timeout_s: seconds that a collective waits for the
    others. is_over: passed where somebody else finds out which ranks are lost; without it, a failure is followed by a
    roll call. pairs: (sender, receiver) places of the ranks that will send each other messages; NCCL connects them when
    the group is made. Raises RankLost if the others do not come, and EpochOver.
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
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.ranks = ranks
        self.rank = ranks.index(rank)
        self.timeout_s = timeout_s
        self.device = device if backend == "nccl" else torch.device("cpu")
        self._store = store
        self._is_over = is_over
        self._unsent: deque[tuple[c10d.Work, Tensor]] = deque()
        self._watch: LaunchWatch | None = None
        self._loss: RankLost | None = None
        self._group: ProcessGroup | None = None
        first = torch.zeros(1, device=self.device)
        group = self._guard(lambda: self._in_thread(lambda: self._meet(backend, first, pairs)))
        self._group = group
        if self.is_on_gpu:
            self._watch = LaunchWatch(group.abort)
        self.synchronize()

    @property
    def is_on_gpu(self) -> bool:
        """Whether collectives are only launched: `synchronize` waits for them, later work of the stream too."""
        return self.device.type == "cuda"

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, which have one shape, as [ranks, *shape] on this group's device."""
        gathered = torch.empty((len(self.ranks), *tensor.shape), dtype=tensor.dtype, device=self.device)
        options = c10d.AllgatherOptions()
        if self.is_on_gpu:  # one kernel, without copies
            self._run(lambda group: group._allgather_base(gathered, tensor, options), options)
        else:
            self._run(lambda group: group.allgather([list(gathered.unbind())], [tensor], options), options)
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

    def synchronize(self) -> None:
        """Waits until everything that was launched on a GPU has been done. Raises RankLost, and EpochOver."""
        if self.is_on_gpu and not torch.cuda.is_current_stream_capturing():
            self._guard(lambda: self._wait_for(self._mark()))

    def launched(self) -> None:
        """Notes that collectives were launched by a graph, so that a rank that is lost is noticed in time."""
        if self.is_on_gpu:
            self._guard(self._expect)

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
        leaving = Leaving(self._group, self._unsent, is_aborted and self.is_on_gpu)
        self._group, self._unsent = None, deque()
        self._end_watch()
        start_thread(leaving.run).join(wait_s)

    def _leave(self) -> None:
        if self._group is not None and self.is_on_gpu:
            self._abandon(_LEAVING_S, is_aborted=False)
        self._unsent.clear()  # a message keeps the connections open, too
        self._group = None

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _await_oldest_message(self) -> None:
        """Waits until the oldest message has left."""
        self._finish(self._unsent[0][0])
        self._unsent.popleft()

    def _run(self, collective: Callable[[ProcessGroup], c10d.Work | None], options: Any) -> None:
        if options is not None:
            options.timeout = timedelta(seconds=self.timeout_s)
            options.asyncOp = not self.is_on_gpu  # on a GPU: on the current stream, not on one of the group's own
        self._guard(lambda: self._finish(collective(self._open())))

    def _open(self) -> ProcessGroup:
        assert self._group is not None, "this group is closed"
        return self._group

    def _finish(self, work: c10d.Work | None) -> None:
        """Waits on the host for gloo's collective, which watches the time limit itself. On a GPU, the stream waits."""
        if self.is_on_gpu:
            if work is not None:  # a message, which has a stream of its own
                work.wait()
            self._expect()
            return
        assert work is not None, "gloo always says how its work stands"
        if self._is_over is not never:
            wait_for(work.is_completed, self._check_epoch)  # a wait inside torch could not be given up
        work.wait()

    def _mark(self) -> torch.cuda.Event:
        """An event that is over when everything launched so far has been done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _expect(self) -> None:
        """Lets the watch expect the end of what has been launched. A graph only notes it, and runs it later."""
        self._check_watch()
        if self._watch is not None and not torch.cuda.is_current_stream_capturing():
            self._watch.expect(self._mark(), self.timeout_s)

    def _wait_for(self, event: torch.cuda.Event) -> None:
        """Waits on the host, with a limit that a plain synchronisation does not have."""
        try:
            wait_for(event.query, self._look, self.timeout_s)
        except TimeoutError:
            raise RuntimeError(f"NCCL timed out after {self.timeout_s:g} s") from None
        self._check_watch()

    def _look(self) -> None:
        self._check_epoch()
        self._check_watch()

    def _check_watch(self) -> None:
        """Raises RuntimeError if the group was given up: what the GPU has computed since is worth nothing."""
        if self._watch is not None and self._watch.failure:
            raise RuntimeError(self._watch.failure)

    def _check_epoch(self) -> None:
        if self._is_over():
            raise EpochOver

    def _meet(self, backend: str, first: Tensor, pairs: Sequence[tuple[int, int]]) -> ProcessGroup:
        """Makes the group, and its connections by a first collective. Both may wait long for the other ranks.

        NCCL builds communicators in the first collective, and in the first message of each pair.
        """
        group = make_group(PrefixStore(backend, self._store), self.rank, len(self.ranks), backend, self.timeout_s)
        options = c10d.AllreduceOptions()
        options.timeout = timedelta(seconds=self.timeout_s)
        try:
            if (work := group.allreduce([first], options)) is not None:
                work.wait()
            for sender, receiver in pairs if self.is_on_gpu else ():
                if self.rank == sender:
                    group.send([first], receiver, 0).wait()
                elif self.rank == receiver:
                    group.recv([first], sender, 0).wait()
        except RuntimeError:
            del group  # the error's traceback would keep it alive, and with it the others waiting
            raise
        return group

    def _in_thread(self, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returns, unless the epoch is over first, or it takes too long."""
        made: Future[_Result] = Future()
        start_thread(_fulfil, made, make)
        limit_s = self.timeout_s + LAST_RESORT_S
        try:
            wait_for(made.done, self._check_epoch, limit_s)
        except TimeoutError:
            raise RuntimeError(f"the ranks were not connected within {limit_s:g} s") from None
        return made.result()

    def _guard(self, attempt: Callable[[], _Result]) -> _Result:
        """Attempts something that needs all ranks and turns its failure, then and later, into RankLost."""
        if self._loss is not None:
            raise RankLost(str(self._loss), self._loss.ranks)
        try:
            return attempt()
        except EpochOver:
            self._abandon()
            raise
        except RuntimeError as error:
            reason = str(error)
        # Outside the handler: there, the error's traceback would keep the group alive, which must be closed first.
        self._loss = self._lost(reason)
        raise self._loss

    def _lost(self, reason: str) -> RankLost:
        """Closes the connections, so that ranks waiting for this one notice the loss too, and calls the roll."""
        if self._is_over is not never:
            self._abandon()
            return RankLost(f"a collective failed: {reason.splitlines()[0]}")
        if self.is_on_gpu:  # the watch has stopped the collectives if it was the one that noticed
            self._abandon(_LEAVING_S, is_aborted=self._watch is None or not self._watch.failure)
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


def _nothing() -> None:
    """Does nothing."""


def _fulfil(future: Future[_Result], make: Callable[[], _Result]) -> None:
    try:
        future.set_result(make())
    except RuntimeError as error:
        future.set_exception(error)


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


class LaunchWatch:
    """Watches that what a rank has launched on its GPU ends in time, in a thread while there is anything to watch.

    The host launches collectives and goes on. If another rank is lost, they never end, and the host comes to stand
    still in a call of CUDA's: a copy that awaits their result, or a launch, as the queue is full. Those calls leave
    Python to other threads, so one of them keeps the time. Marks are events: reached once all before them is done.

    failure: why the group was given up; empty as long as it is in order.
    """

    def __init__(self, give_up: Callable[[], None]):
        """give_up: ends whatever is under way on the GPU. It is called once, in the thread of the watch."""
        self.failure = ""
        self._give_up = give_up
        self._marks: deque[tuple[torch.cuda.Event, float, float]] = deque()  # with limit and deadline
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, mark: torch.cuda.Event, limit_s: float) -> None:
        """Expects a mark to be reached within so many seconds."""
        self._marks.append((mark, limit_s, time.monotonic() + limit_s))
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="launch watch", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Ends the thread and waits for it; may be called twice.

        A thread that let go of events or of the group while the interpreter ends would end the process by a signal.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVING_S)
        self._give_up = _nothing

    def _run(self) -> None:
        while not self._stop.is_set() and not self.failure:
            if not self._marks:
                self._wake.clear()
                if not self._marks and not self._stop.is_set():  # `end` may have come just before
                    self._wake.wait()
                continue
            self._look()
            self._stop.wait(LIVENESS_S)
        self._marks.clear()

    def _look(self) -> None:
        """Drops the marks that have been reached. Gives up if the oldest of the others is late, or the GPU fails."""
        try:
            while self._marks and self._marks[0][0].query():
                self._marks.popleft()
        except RuntimeError as error:  # such as an illegal memory access, which every later call reports, too
            self.failure = f"the GPU failed: {error}"
        if self._marks and not self.failure and time.monotonic() > self._marks[0][2]:
            self.failure = f"NCCL timed out after {self._marks[0][1]:g} s"
        if self.failure:
            self._give_up()
