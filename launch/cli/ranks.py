"""Runs a command on several ranks of this machine, each a process of its own, as torchrun would.

Nobody needs to type torchrun, nothing heavy is imported here, and the ranks' own messages and exit codes are all that
is seen. Ranks that must survive the loss of another are started by launch/supervisor instead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from launch.cli.start import command

# Seconds that the other ranks have to end by themselves once one has ended: they find out, and say what they know.
LEAVE_S = 10.0
POLL_S = 0.05


def run_on_ranks(module: str, arguments: Sequence[str], num_ranks: int) -> int:
    """Runs launch/MODULE.py on several ranks. Returns rank 0's exit code, or that of another rank that failed.

    SIGINT and SIGTERM are passed on to rank 0, which tells the others.
    """
    return run_processes(command(module, arguments), num_ranks)


def run_processes(words: Sequence[str], num_ranks: int, leave_s: float = LEAVE_S) -> int:
    """Runs a command on several ranks; see run_on_ranks."""
    port = str(_free_port())
    ranks: list[subprocess.Popen[bytes]] = []
    with _passing_on(lambda number: ranks[0].send_signal(number) if ranks else None):
        try:
            for rank in range(num_ranks):
                ranks.append(_start(words, rank, num_ranks, port))
            codes = _wait(ranks, leave_s)
        finally:
            for process in ranks:
                process.kill()  # does nothing to one that has ended
                process.wait()
    _report(codes)
    failed = ranks[0].returncode or next(filter(None, codes), 0)
    return 128 - failed if failed < 0 else failed


def _start(words: Sequence[str], rank: int, num_ranks: int, port: str) -> subprocess.Popen[bytes]:
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return subprocess.Popen(
        words,
        env={**os.environ, **place},
        stdin=None if rank == 0 else subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C at a terminal is for this process, which passes it on
    )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], leave_s: float) -> list[int | None]:
    """Waits until all have ended. Once rank 0 has ended, or any has failed, the rest have `leave_s` seconds.

    Returns the exit codes at that moment, before any rank was told to end; None for those that still ran.
    """
    while (codes := _codes(ranks))[0] is None and not any(codes):
        time.sleep(POLL_S)
    if codes[0]:
        for process in ranks:
            process.terminate()
    deadline = time.monotonic() + leave_s
    while None in _codes(ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return codes


def _codes(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    return [process.poll() for process in ranks]


def _report(codes: Sequence[int | None]) -> None:
    """Says which ranks a signal has ended; those that failed by themselves have said why."""
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            print(f"rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)


@contextmanager
def _passing_on(send: Callable[[int], None]) -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        send(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
