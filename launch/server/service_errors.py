"""Why the service refuses a request, or ends it before it is finished. Knows nothing of HTTP."""

from __future__ import annotations

from lp.engine import NOT_A_NUMBER


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
