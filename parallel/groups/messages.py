"""What a front end and its ranks say to each other over a link: the messages, and their form as bytes.

The first line of a message is a JSON object with the message's type and its values. Commands follow it as the lines
that they are (see commands.py), so that a request is not encoded again for the link.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from lp.request import Output
from parallel.groups import commands
from parallel.groups.commands import Command
from parallel.groups.epoch import Epoch


@dataclass(frozen=True)
class Hello:
    """A rank's first message: who it is and where it runs."""

    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Ready:
    """The rank could serve. device: where it would. num_pages: room for keys and values; 0 if it is not known yet."""

    device: str
    num_pages: int = 0


@dataclass(frozen=True)
class Alive:
    """The rank still runs. Sent at regular intervals."""


@dataclass(frozen=True)
class Joined:
    """The rank has met the other members of an epoch."""

    epoch: int


@dataclass(frozen=True)
class Left:
    """The rank has ended an epoch after a whole step, as it was told to. cached: by the id of each running request, how
    many of its tokens have keys and values on the rank.
    """

    epoch: int
    cached: dict[str, int]


@dataclass(frozen=True)
class Lost:
    """A collective of an epoch has failed. ranks: those that seem to be the cause; may be empty."""

    epoch: int
    ranks: list[int]
    reason: str


@dataclass(frozen=True)
class Failed:
    """The rank ends with an error. is_final: whether it would fail again if it were started again."""

    reason: str
    is_final: bool


@dataclass(frozen=True)
class Progressed:
    """What a step of an epoch added to its requests. Only the requests' leader sends it."""

    epoch: int
    progress: list[Output]


@dataclass(frozen=True)
class Measured:
    """What steps take, as StepTimes.to_dict has it. Only leaders send it. times: by the size of a group, as a word."""

    times: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class BeginEpoch:
    """The rank is to end the epoch at hand, if there is one, and to begin this one."""

    epoch: Epoch


@dataclass(frozen=True)
class Commands:
    """Commands for all members of an epoch, sent to its leader."""

    epoch: int
    commands: list[Command]


@dataclass(frozen=True)
class Leave:
    """The rank is to end."""

    reason: str


RankMessage = Hello | Ready | Alive | Joined | Left | Lost | Failed | Progressed | Measured
FrontEndMessage = BeginEpoch | Commands | Leave

_FROM_RANK: dict[str, type[RankMessage]] = {kind.__name__: kind for kind in get_args(RankMessage)}
_FROM_FRONT_END: dict[str, type[FrontEndMessage]] = {kind.__name__: kind for kind in get_args(FrontEndMessage)}
_HINTS = {kind: get_type_hints(kind) for kind in (*_FROM_RANK.values(), *_FROM_FRONT_END.values())}


def encode(message: RankMessage | FrontEndMessage) -> bytes:
    """The message's bytes."""
    values, body = vars(message), b""
    match message:
        case Progressed(epoch, progress):
            values = {"epoch": epoch, "progress": [one.to_dict() for one in progress]}
        case BeginEpoch(epoch):
            values = {"epoch": epoch.to_dict()}
        case Commands(epoch, issued):
            values, body = {"epoch": epoch}, commands.encode(issued)
    head = json.dumps({"type": type(message).__name__, **values}, separators=(",", ":")).encode()
    return head + b"\n" + body


def from_rank(data: bytes) -> RankMessage:
    """A message that a rank sent. Raises ValueError if it is none."""
    return _decode(data, _FROM_RANK)


def from_front_end(data: bytes) -> FrontEndMessage:
    """A message that a front end sent. Raises ValueError if it is none."""
    return _decode(data, _FROM_FRONT_END)


def _decode(data: bytes, kinds: dict[str, type[Any]]) -> Any:
    head, _, body = data.partition(b"\n")
    try:
        values = json.loads(head)
        kind = kinds[values.pop("type")]
        if kind is Progressed:
            values["progress"] = [Output.from_dict(one) for one in values["progress"]]
        elif kind is BeginEpoch:
            values["epoch"] = Epoch.from_dict(values["epoch"])
        elif kind is Commands:
            values["commands"] = commands.decode(body)
        message = kind(**values)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"not a message: {head[:100]!r} ({type(error).__name__}: {error})") from error
    for name, hint in _HINTS[kind].items():
        if not isinstance(getattr(message, name), get_origin(hint) or hint):
            raise ValueError(f"not a message: {head[:100]!r} ({name} is not of type {hint})")
    return message
