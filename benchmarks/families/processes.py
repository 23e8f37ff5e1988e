"""Calls functions in processes of their own, each of which may crash or hang without harm to others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

T = TypeVar("T")

# Forked processes have everything imported already.
_CONTEXT = multiprocessing.get_context("fork")


class ProcessEnded(RuntimeError):
    """A process that ended, or was ended, without a result."""


def call_in_processes(functions: Sequence[Callable[[], T]], limit_s: float) -> list[T]:
    """The functions' results. Raises ProcessEnded if a process ends without one, or all need more than `limit_s`."""
    processes: list[BaseProcess] = []
    receivers: list[Connection] = []
    deadline = time.monotonic() + limit_s
    try:
        for function in functions:
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_call, args=(function, sender))
            process.start()
            sender.close()  # the process has the only open end, so its death is seen
            processes.append(process)
            receivers.append(receiver)
        return [_receive(receiver, deadline, limit_s) for receiver in receivers]
    finally:
        for process in processes:
            _end(process)


def _call(function: Callable[[], T], sender: Connection) -> None:
    os.setsid()  # so that what it starts ends with it
    sender.send(function())


def _receive(receiver: Connection, deadline: float, limit_s: float) -> T:
    if not receiver.poll(max(0.0, deadline - time.monotonic())):
        raise ProcessEnded(f"it has not ended after {limit_s:.0f} s")
    try:
        return receiver.recv()
    except EOFError:
        raise ProcessEnded("its process ended without a result") from None


def _end(process: BaseProcess) -> None:
    """Ends a process and those that it has started."""
    assert process.pid is not None
    with suppress(ProcessLookupError):  # it has ended, or has no group of its own yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
