"""Adds the latency of a slower network to every collective, for experiments on one host.

The wait is busy, because sleeping is too coarse, and comes after the collective. It is pessimistic where a message is
sent while its receiver is still computing: a real network would hide some of the latency.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from parallel.comm.base import Collectives, Exchange, Messages
from parallel.comm.traffic import Traffic


def wait_busily(delay_us: float) -> None:
    """Occupies this core for `delay_us` microseconds."""
    end = time.perf_counter() + delay_us * 1e-6
    while time.perf_counter() < end:
        pass


class DelayedExchange:
    """An `Exchange` whose collectives take `delay_us` microseconds longer."""

    def __init__(self, inner: Exchange, delay_us: float) -> None:
        self.rank = inner.rank
        self.num_ranks = inner.num_ranks
        self.traffic = inner.traffic
        self.messages = inner.messages and DelayedMessages(inner.messages, delay_us)
        self._inner = inner
        self._delay_us = delay_us

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        gathered = self._inner.all_gather(mine, timeout_s)
        self._wait()
        return gathered

    def broadcast(self, data: bytes | None) -> bytes:
        received = self._inner.broadcast(data)
        self._wait()
        return received

    def close(self) -> None:
        self._inner.close()

    def _wait(self) -> None:
        _wait_counted(self.traffic, self._delay_us)


class DelayedMessages:
    """`Messages` whose receiver waits `delay_us` microseconds longer."""

    def __init__(self, inner: Messages, delay_us: float) -> None:
        self.traffic = inner.traffic
        self._messages = inner
        self._delay_us = delay_us

    def send(self, tensor: Tensor, to: int) -> None:
        self._messages.send(tensor, to)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> Tensor:
        received = self._messages.receive(shape, dtype, source)
        self._wait()
        return received

    def settle(self) -> None:
        self._messages.settle()

    def close(self) -> None:
        self._messages.close()

    def _wait(self) -> None:
        _wait_counted(self.traffic, self._delay_us)


class DelayedCollectives(DelayedMessages):
    """`Collectives` that take `delay_us` microseconds longer; for a message, only its receiver waits."""

    def __init__(self, inner: Collectives, delay_us: float) -> None:
        super().__init__(inner, delay_us)
        self.rank = inner.rank
        self.num_ranks = inner.num_ranks
        self._inner = inner

    def all_reduce(self, tensor: Tensor) -> Tensor:
        summed = self._inner.all_reduce(tensor)
        self._wait()
        return summed

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self._inner.all_gather(tensor)
        self._wait()
        return gathered

    def launching(self) -> AbstractContextManager[None]:
        return self._inner.launching()

    def deferred(self) -> AbstractContextManager[None]:
        return self._inner.deferred()

    def replayed(self, traffic: Traffic) -> None:
        self._inner.replayed(traffic)

    def agree(self, is_so: bool) -> bool:
        return self._inner.agree(is_so)


def _wait_counted(traffic: Traffic, delay_us: float) -> None:
    with traffic.counted(0, num_collectives=0):
        wait_busily(delay_us)
