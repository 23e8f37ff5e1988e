"""Commands from a front end to the engines of all ranks, and how they travel: as JSON, one line for each command.

A line is written once, by the process that hands the command in first. A command that was read from a line keeps it, so
whoever passes the command on passes the same bytes on. Where there is a single rank, no line is written at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from lp.methods.registry import from_dict
from lp.request import Request


class _Line:
    """A command's line, written when it is first asked for."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        raise NotImplementedError

    @cached_property
    def line(self) -> bytes:
        return json.dumps(self.to_dict(), separators=(",", ":")).encode()


@dataclass(frozen=True)
class AddRequest(_Line):
    """Begin this request, or go on with it. tokens: those that it has already."""

    request: Request
    tokens: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"add_request": self.request.to_dict()} | ({"tokens": self.tokens} if self.tokens else {})


@dataclass(frozen=True)
class Abort(_Line):
    """End this request after the current step, if it is still running."""

    request_id: str

    def to_dict(self) -> dict[str, Any]:
        return {"abort": self.request_id}


@dataclass(frozen=True)
class Regroup(_Line):
    """Stop after the current step: other ranks will take part in the next one."""

    def to_dict(self) -> dict[str, Any]:
        return {"regroup": True}


@dataclass(frozen=True)
class Shutdown(_Line):
    """Stop for good."""

    def to_dict(self) -> dict[str, Any]:
        return {"shutdown": True}


@dataclass(frozen=True)
class Measure(_Line):
    """Measure the step times anew, on all ranks together."""

    def to_dict(self) -> dict[str, Any]:
        return {"measure": True}


Command = AddRequest | Abort | Regroup | Shutdown | Measure


class Inbox(Protocol):
    """Where rank 0, or a supervisor, gets its commands."""

    def take(self, wait_s: float) -> list[Command]:
        """The commands that have arrived. Waits up to `wait_s` seconds for the first of them.

        May raise EpochOver where ranks come and go.
        """
        ...

    def has_waiting(self) -> bool:
        """Whether `take` would find a command now. Must be cheap: it is asked at every step."""
        ...


def encode(commands: Iterable[Command]) -> bytes:
    """The commands' lines; nothing for no commands."""
    return b"\n".join(command.line for command in commands)


def decode(data: bytes) -> list[Command]:
    """The inverse of `encode`. Raises ValueError for a line that is no command."""
    return [_read(line) for line in data.split(b"\n")] if data else []


def _read(line: bytes) -> Command:
    match json.loads(line):
        case {"add_request": dict(values), **more}:
            command = AddRequest(Request.from_dict(values, from_dict(values["decode"])), tuple(more.get("tokens", ())))
        case {"abort": str(request_id)}:
            command = Abort(request_id)
        case {"regroup": True}:
            command = Regroup()
        case {"shutdown": True}:
            command = Shutdown()
        case {"measure": True}:
            command = Measure()
        case _:
            raise ValueError(f"not a command: {line[:100]!r}")
    vars(command)["line"] = line  # where the cached property keeps it
    return command
