"""The thread-safe front of an engine: requests of an event loop on one side, the engine's thread on the other.

Holds requests back so that at most `max_running` are in the engine, first come first served. On the engine's side it is
the `Inbox` of `parallel.group.commands`. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from launch.server.metrics import Clock, Metrics
from lp.engine import NOT_A_NUMBER
from lp.request import Progress, Request
from lp.statistics import Statistics
from parallel.group.commands import Cancel, Command, Shutdown, Submit


class ServiceError(Exception):
    """A request that is not, or not any more, served."""


class QueueFull(ServiceError):
    """More requests wait than may."""

    def __init__(self, num_waiting: int):
        super().__init__(f"the server is busy and {num_waiting} requests are waiting already; try again later")


class ShuttingDown(ServiceError):
    """The server takes no new requests, or had no time left for this one."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; try again later")


class EngineFailed(ServiceError):
    """The engine has stopped with an error."""

    def __init__(self) -> None:
        super().__init__("the engine has stopped with an error; the server's log says which")


class RanksLost(ServiceError):
    """Nobody is left who could go on with a request that was running; later ones may be answered."""


class GenerationFailed(ServiceError):
    """The model could not answer this request; others go on."""

    def __init__(self) -> None:
        super().__init__(NOT_A_NUMBER)


class Subscription:
    """What becomes of one request, as an asynchronous iterator of Progress. Raises ServiceError if it is cut short."""

    def __init__(self, service: Service, request_id: str):
        self._service = service
        self._request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Progress | ServiceError] = asyncio.Queue()
        self._over = False

    def publish(self, news: Progress | ServiceError) -> None:
        """Hands news over from any thread; they are lost if the event loop has gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Progress:
        if self._over:
            raise StopAsyncIteration
        news = await self._news.get()
        self._over = isinstance(news, ServiceError) or news.finish_reason is not None
        if isinstance(news, ServiceError):
            raise news
        if news.finish_reason == "cancelled":
            raise ShuttingDown
        if news.finish_reason == "error":
            raise GenerationFailed
        return news

    def close(self) -> None:
        """Cancels the request unless its end has been read."""
        if not self._over:
            self._over = True
            self._service.cancel(self._request_id)


@dataclass
class _Ticket:
    """A request that the service has accepted and whose end it has not seen."""

    request: Request
    subscription: Subscription
    clock: Clock


class Service:
    """Accepts requests, hands them to the engine's thread and gives back what it makes of them.

    `submit`, `cancel`, `drain` and the properties are for any thread; `take`, `has_waiting`, `emit` and `fail` are the
    engine's side.
    """

    def __init__(self, max_running: int, max_waiting: int, metrics: Metrics):
        self.max_running = max_running
        self.max_waiting = max_waiting
        self._metrics = metrics
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, _Ticket] = OrderedDict()
        self._running: dict[str, _Ticket] = {}
        self._cancelled: list[str] = []
        self._deadline: float | None = None  # when draining: time.monotonic() at which what is left is cancelled
        self._failed = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_draining(self) -> bool:
        return self._deadline is not None

    @property
    def has_failed(self) -> bool:
        return self._failed

    def check_open(self) -> None:
        """Raises the ServiceError with which a new request would be refused now."""
        with self._changed:
            if self._failed:
                raise EngineFailed
            if self.is_draining:
                raise ShuttingDown
            if self.num_running + self.num_waiting >= self.max_running + self.max_waiting:
                raise QueueFull(self.num_waiting)

    def submit(self, request: Request) -> Subscription:
        """Accepts a request of the running event loop. Raises ServiceError if it is refused."""
        with self._changed:
            self.check_open()
            subscription = Subscription(self, request.id)
            self._waiting[request.id] = _Ticket(request, subscription, Clock())
            self._changed.notify_all()
        return subscription

    def cancel(self, request_id: str) -> None:
        """Ends a request at once if it is waiting, after the current step if it is running."""
        with self._changed:
            if request_id in self._running:
                self._cancelled.append(request_id)
                self._changed.notify_all()
                return
            ticket = self._waiting.pop(request_id, None)
            self._changed.notify_all()
        if ticket:
            statistics = Statistics(prompt_tokens=len(ticket.request.prompt))
            self._publish(ticket, Progress(request_id, [], "", None, "cancelled", statistics))

    def drain(self, within_s: float) -> None:
        """Refuses new requests; the engine is shut down when the accepted ones are over, or their time is."""
        with self._changed:
            self._deadline = time.monotonic() + within_s
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Command]:
        """The commands that are due; waits up to `wait_s` for the first."""
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            self._cancel_the_late()
            commands: list[Command] = [Cancel(request_id) for request_id in self._cancelled]
            self._cancelled.clear()
            while self._waiting and len(self._running) < self.max_running:
                request_id, ticket = self._waiting.popitem(last=False)
                self._running[request_id] = ticket
                commands.append(Submit(ticket.request))
            if self.is_draining and not self._running:
                commands.append(Shutdown())
            return commands

    def has_waiting(self) -> bool:
        """Whether any command is due."""
        with self._changed:
            has_place = len(self._running) < self.max_running
            is_over = self.is_draining and not (self._running or self._waiting)
            return bool(self._cancelled) or (bool(self._waiting) and has_place) or is_over or self._is_late()

    def emit(self, progress: Progress) -> None:
        """Takes what a step added to a request."""
        request_id = progress.request_id
        with self._changed:
            ticket = self._running.get(request_id)
            if ticket is None:
                return
            if progress.finish_reason:
                del self._running[request_id]
                self._cancelled = [other for other in self._cancelled if other != request_id]
                self._changed.notify_all()
        self._publish(ticket, progress)

    def lose_running(self, message: str) -> None:
        """Tells those whose requests were running that they are lost, and why."""
        with self._changed:
            tickets = [*self._running.values()]
            self._running.clear()
            self._cancelled.clear()
            self._changed.notify_all()
        for ticket in tickets:
            ticket.subscription.publish(RanksLost(message))

    def fail(self) -> None:
        """Tells everybody that the engine has stopped with an error."""
        with self._changed:
            self._failed = True
            tickets = [*self._running.values(), *self._waiting.values()]
            self._running.clear()
            self._waiting.clear()
        for ticket in tickets:
            ticket.subscription.publish(EngineFailed())

    def _publish(self, ticket: _Ticket, progress: Progress) -> None:
        self._metrics.observe(progress, ticket.clock)
        ticket.subscription.publish(progress)

    def _is_late(self) -> bool:
        return (
            self._deadline is not None and time.monotonic() >= self._deadline and bool(self._running or self._waiting)
        )

    def _cancel_the_late(self) -> None:
        if self._is_late():
            for request_id in [*self._running, *self._waiting]:
                self.cancel(request_id)
