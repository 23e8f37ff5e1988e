"""A thread-safe queue of requests between an event loop, which submits them, and the thread of the engine.

At most `max_running` requests are in the engine at a time; the others wait. What was submitted together, such as a list
of prompts, gets one turn in each round, so it does not hold up what others submit; single requests are handed out in
the order of their arrival. Of those in the engine, some may wait there for room for their keys and values, as every
rank decides alike (lp/scheduling/kv_budget.py). The engine's thread uses the service as the `Inbox` of
`parallel.groups.messages`. The service knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from launch.server.metrics import Clock, Metrics
from lp.engine.engine import NOT_A_NUMBER
from lp.request import Output, Request
from lp.statistics import Statistics
from parallel.groups.messages import Abort, AddRequest, Command, ResetPrefixes, Shutdown


class ServiceError(Exception):
    """A request is refused, or ends before it is finished."""


class QueueFull(ServiceError):
    """The queue of waiting requests is full."""

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
    """No rank is left that could continue a running request. Later requests may be answered."""


class GenerationFailed(ServiceError):
    """The model answered this request with a value that is not a number. Other requests continue."""

    def __init__(self) -> None:
        super().__init__(NOT_A_NUMBER)


class TooLarge(ServiceError):
    """There can never be room for the keys and values of this request, not even alone."""


class Unsupported(ServiceError):
    """The model's forward cannot do what this request asks for."""


# A pace is that of so many requests that ended last.
NUM_RECENT = 32
# Seconds after which a refused client is asked to come back at the latest, and the age at which a pace is forgotten.
LONGEST_WAIT_S, FORGOTTEN_S = 60, 300.0


class Subscription:
    """An asynchronous iterator over the output of requests that were submitted together.

    Raises ServiceError if one of them is cut short, which ends the others. num_waiting: how many of them wait.
    """

    num_waiting = 0

    def __init__(self, service: Service, request_ids: Iterable[str]):
        self._service = service
        self._open = set(request_ids)
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Output | ServiceError] = asyncio.Queue()

    def publish(self, news: Output | ServiceError) -> None:
        """Hands output or an error over from any thread; both are dropped if the event loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Output:
        if not self._open:
            raise StopAsyncIteration
        news = await self._news.get()
        if not isinstance(news, ServiceError):
            if news.finish_reason:
                self._open.discard(news.request_id)
            if (failure := _failure(news)) is None:
                return news
            news = failure
        self.close()
        raise news

    def close(self) -> None:
        """Cancels the requests whose end has not been read yet."""
        while self._open:
            self._service.cancel(self._open.pop())


def _failure(output: Output) -> ServiceError | None:
    """Why a request was cut short; None if it was not."""
    match output.finish_reason:
        case "cancelled":
            return ShuttingDown()
        case "error":
            return GenerationFailed()
        case "no_room":
            return TooLarge(output.text)
        case "unsupported":
            return Unsupported(output.text)
        case _:
            return None


@dataclass
class _Ticket:
    """A request that the service has accepted and that has not ended. num_tokens: of its prompt and its text so far."""

    request: Request
    subscription: Subscription
    clock: Clock
    num_tokens: int


class Service:
    """Accepts requests, hands them to the engine's thread and passes on their output.

    Any thread may call `submit`, `cancel` and `drain` and read the properties. The engine's thread calls `take`,
    `has_waiting`, `emit`, `lose_running` and `fail`.
    """

    def __init__(self, max_running: int, max_waiting: int, metrics: Metrics, least_wait_s: int = 1):
        """least_wait_s: the fewest seconds after which a refused client may come back."""
        self.max_running = max_running
        self._least_wait_s = least_wait_s
        self._ends: deque[float] = deque(maxlen=NUM_RECENT)  # when requests ended, in seconds of time.monotonic()
        self.max_waiting = max_waiting
        self._metrics = metrics
        self._changed = threading.Condition()
        self._waiting: dict[str, _Ticket] = {}
        # What waits, and what has been cancelled since, by round, order of arrival and id; the round of what ran last.
        self._turns: list[tuple[int, int, str]] = []
        self._round, self._arrivals = 0, itertools.count()
        self._num_places = 0  # that waiting requests take
        self._running: dict[str, _Ticket] = {}
        self._cancelled: list[str] = []
        self._resets_prefixes = False
        # While draining: the time.monotonic() at which the requests that are left are cancelled; infinite afterwards.
        self._deadline: float | None = None
        self._failed = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request in the engine."""
        with self._changed:
            return [ticket.num_tokens for ticket in self._running.values()]

    def retry_after_s(self) -> int:
        """Seconds after which there is probably a place for a client that is refused now.

        The requests that must end first, at the pace at which requests ended lately.
        """
        with self._changed:
            now, ends = time.monotonic(), [*self._ends]
            too_many = self.num_running + self.num_waiting + 1 - self.max_running
        ends = [end for end in ends if now - end < FORGOTTEN_S]
        each_s = (now - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0
        return max(self._least_wait_s, min(LONGEST_WAIT_S, math.ceil(max(0, too_many) * each_s)))

    @property
    def is_draining(self) -> bool:
        return self._deadline is not None

    @property
    def has_failed(self) -> bool:
        return self._failed

    def check_open(self, num_requests: int = 1) -> None:
        """Raises the ServiceError with which requests would be refused now.

        Those that are submitted together take at most `max_running` places, as no more of them can run at a time.
        """
        with self._changed:
            if self._failed:
                raise EngineFailed
            if self.is_draining:
                raise ShuttingDown
            wanted = self.num_running + self._num_places + min(num_requests, self.max_running)
            if wanted > self.max_running + self.max_waiting:
                raise QueueFull(self.num_waiting)

    def submit(self, *requests: Request) -> Subscription:
        """Accepts requests of the running event loop, all of them or none. Raises ServiceError if they are refused."""
        with self._changed:
            self.check_open(len(requests))
            subscription = Subscription(self, [request.id for request in requests])
            for turn, request in enumerate(requests, self._round + 1):
                self._waiting[request.id] = _Ticket(request, subscription, Clock(), len(request.prompt))
                heappush(self._turns, (turn, next(self._arrivals), request.id))
            subscription.num_waiting = len(requests)
            self._num_places += min(len(requests), self.max_running)
            self._changed.notify_all()
        return subscription

    def cancel(self, request_id: str) -> None:
        """Ends a request at once if it is waiting, after the current step if it is running."""
        with self._changed:
            if request_id in self._running:
                self._cancelled.append(request_id)
                self._changed.notify_all()
                return
            ticket = self._leave(request_id)
            self._changed.notify_all()
        if ticket:
            statistics = Statistics(prompt_tokens=len(ticket.request.prompt))
            self._publish(ticket, Output(request_id, [], "", None, "cancelled", statistics))

    def reset_prefixes(self) -> None:
        """Makes the engine forget the keys and values of finished requests, before it begins another one."""
        with self._changed:
            self._resets_prefixes = True
            self._changed.notify_all()

    def drain(self, within_s: float) -> None:
        """Refuses new requests, and shuts the engine down when the accepted ones have ended.

        within_s: seconds after which those that are left are cancelled.
        """
        with self._changed:
            self._deadline = time.monotonic() + within_s
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Command]:
        """Returns the commands that are due. Waits up to `wait_s` seconds for the first."""
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            self._cancel_the_late()
            commands: list[Command] = [Abort(request_id) for request_id in self._cancelled]
            self._cancelled.clear()
            if self._resets_prefixes:
                commands.append(ResetPrefixes())
                self._resets_prefixes = False
            while self._waiting and len(self._running) < self.max_running:
                self._round, _, request_id = heappop(self._turns)
                if (ticket := self._leave(request_id)) is None:
                    continue
                self._running[request_id] = ticket
                ticket.clock.start()
                commands.append(AddRequest(ticket.request))
            if self.is_draining and not self._running:
                commands.append(Shutdown())
            return commands

    def _leave(self, request_id: str) -> _Ticket | None:
        """Takes a request out of the queue. Returns None if it does not wait."""
        if (ticket := self._waiting.pop(request_id, None)) is not None:
            together = ticket.subscription
            self._num_places -= together.num_waiting <= self.max_running
            together.num_waiting -= 1
            if len(self._turns) > 2 * len(self._waiting) + NUM_RECENT:  # most of them have been cancelled
                self._turns = sorted(turn for turn in self._turns if turn[2] in self._waiting)
        return ticket

    def has_waiting(self) -> bool:
        """Whether any command is due."""
        with self._changed:
            has_place = len(self._running) < self.max_running
            is_over = self.is_draining and not (self._running or self._waiting)
            is_due = bool(self._cancelled) or self._resets_prefixes
            return is_due or (bool(self._waiting) and has_place) or is_over or self._is_late()

    def emit(self, output: Output) -> None:
        """Passes on what a step added to a request."""
        request_id = output.request_id
        with self._changed:
            ticket = self._running.get(request_id)
            if ticket is None:
                return
            ticket.num_tokens += len(output.tokens)
            if output.finish_reason:
                self._ends.append(time.monotonic())
                del self._running[request_id]
                self._cancelled = [other for other in self._cancelled if other != request_id]
                self._changed.notify_all()
        self._publish(ticket, output)

    def lose_running(self, message: str) -> None:
        """Ends all running requests with RanksLost. message: the reason, for the clients."""
        with self._changed:
            tickets = [*self._running.values()]
            self._running.clear()
            self._cancelled.clear()
            self._changed.notify_all()
        for ticket in tickets:
            ticket.subscription.publish(RanksLost(message))

    def fail(self) -> None:
        """Ends all requests with EngineFailed, and refuses new ones from now on."""
        with self._changed:
            self._failed = True
            tickets = [*self._running.values(), *self._waiting.values()]
            self._running.clear()
            for request_id in [*self._waiting]:
                self._leave(request_id)
        for ticket in tickets:
            ticket.subscription.publish(EngineFailed())

    def _publish(self, ticket: _Ticket, output: Output) -> None:
        self._metrics.observe(output, ticket.clock)
        ticket.subscription.publish(output)

    def _is_late(self) -> bool:
        return (
            self._deadline is not None and time.monotonic() >= self._deadline and bool(self._running or self._waiting)
        )

    def _cancel_the_late(self) -> None:
        if self._is_late():
            self._deadline = math.inf  # those that run end with their step: telling them again would only delay it
            for request_id in [*self._running, *self._waiting]:
                self.cancel(request_id)
