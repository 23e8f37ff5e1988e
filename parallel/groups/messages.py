"""What front ends, ranks and engines say to each other: commands, the messages of a link, and their form as bytes.

A command goes to the engines of all ranks of a group: JSON, one line for each command. Where there is a single rank, no
line is written at all.

A message goes over the link between a front end and a rank. Its first line is a JSON object with the message's type and
its values. Commands follow it as the lines that they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from lp.methods.registry import from_dict
from lp.request import Output, Request
from parallel.groups.epoch import Epoch


@dataclass(frozen=True)
class AddRequest:
    """Begin this request, or go on with it. tokens: those that it has already."""

    request: Request
    tokens: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"add_request": self.request.to_dict()} | ({"tokens": self.tokens} if self.tokens else {})


@dataclass(frozen=True)
class Abort:
    """End this request after the current step, if it is still running."""

    request_id: str

    def to_dict(self) -> dict[str, Any]:
        return {"abort": self.request_id}


@dataclass(frozen=True)
class HandOver:
    """Send the keys and values of this request to the front end while it goes on, and end it when all are sent."""

    request_id: str

    def to_dict(self) -> dict[str, Any]:
        return {"hand_over": self.request_id}


@dataclass(frozen=True)
class Regroup:
    """Stop after the current step: other ranks will take part in the next one."""

    def to_dict(self) -> dict[str, Any]:
        return {"regroup": True}


@dataclass(frozen=True)
class Shutdown:
    """Stop for good."""

    def to_dict(self) -> dict[str, Any]:
        return {"shutdown": True}


@dataclass(frozen=True)
class UseTimes:
    """Decide by these step times from now on. times: as StepTimes.to_dict has them."""

    times: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"use_times": self.times}


@dataclass(frozen=True)
class TryStep:
    """Run a single step that nobody waits for, to learn its time. See `Trial` in lp/runner/step_times/learn.py."""

    num_rows: int
    is_shared: bool
    is_plain: bool

    def to_dict(self) -> dict[str, Any]:
        return {"try_step": [self.num_rows, self.is_shared, self.is_plain]}


@dataclass(frozen=True)
class ResetPrefixes:
    """Forget the keys and values of finished requests."""

    def to_dict(self) -> dict[str, Any]:
        return {"reset_prefixes": True}


Command = AddRequest | Abort | HandOver | Regroup | Shutdown | UseTimes | TryStep | ResetPrefixes


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


def encode_commands(commands: Iterable[Command]) -> bytes:
    """The commands' lines; nothing for no commands."""
    return b"\n".join(json.dumps(command.to_dict(), separators=(",", ":")).encode() for command in commands)


def decode_commands(data: bytes) -> list[Command]:
    """The inverse of `encode_commands`. Raises ValueError for a line that is no command."""
    return [_command(line) for line in data.split(b"\n")] if data else []


def _command(line: bytes) -> Command:
    match json.loads(line):
        case {"add_request": dict(values), **more}:
            return AddRequest(Request.from_dict(values, from_dict(values["decode"])), tuple(more.get("tokens", ())))
        case {"abort": str(request_id)}:
            return Abort(request_id)
        case {"hand_over": str(request_id)}:
            return HandOver(request_id)
        case {"regroup": True}:
            return Regroup()
        case {"shutdown": True}:
            return Shutdown()
        case {"use_times": dict(times)}:
            return UseTimes(times)
        case {"try_step": [int(num_rows), bool(is_shared), bool(is_plain)]}:
            return TryStep(num_rows, is_shared, is_plain)
        case {"reset_prefixes": True}:
            return ResetPrefixes()
        case _:
            raise ValueError(f"not a command: {line[:100]!r}")


@dataclass(frozen=True)
class Hello:
    """A rank's first message: who it is and where it runs."""

    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Ready:
    """The rank could serve. device: where it would. num_pages: room for keys and values; 0 if it is not known before
    the ranks meet, as where each holds a part of the model.
    """

    device: str
    num_pages: int = 0


@dataclass(frozen=True)
class Alive:
    """The rank still runs. Sent at regular intervals."""


@dataclass(frozen=True)
class Joined:
    """The rank has met the other members of an epoch. num_pages: its room for keys and values."""

    epoch: int
    num_pages: int


@dataclass(frozen=True)
class Left:
    """The rank has ended an epoch after a whole step, as it was told to. cached: by the id of each running request, how
    many of its tokens have keys and values on the rank.
    """

    epoch: int
    cached: dict[str, int]


@dataclass(frozen=True)
class Lost:
    """A collective of an epoch has failed."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Failed:
    """The rank ends with an error. is_final: whether it would fail again if it were started again."""

    reason: str
    is_final: bool


@dataclass(frozen=True)
class Outputs:
    """What a step of an epoch added to its requests. Only the requests' leader sends it."""

    epoch: int
    outputs: list[Output]


@dataclass(frozen=True)
class KVChunk:
    """Keys and values of a request that moves to another group: those of its tokens from `begin` on. The front end
    passes them on.

    layout: the same on ranks that can use each other's keys and values.
    """

    epoch: int
    request_id: str
    begin: int
    layout: int
    data: bytes


@dataclass(frozen=True)
class HandedOver:
    """All keys and values of a request have been sent, and it has ended here."""

    epoch: int
    request_id: str


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


RankMessage = Hello | Ready | Alive | Joined | Left | Lost | Failed | Outputs | KVChunk | HandedOver | Measured
FrontEndMessage = BeginEpoch | Commands | KVChunk | Leave

_FROM_RANK: dict[str, type[RankMessage]] = {kind.__name__: kind for kind in get_args(RankMessage)}
_FROM_FRONT_END: dict[str, type[FrontEndMessage]] = {kind.__name__: kind for kind in get_args(FrontEndMessage)}
_HINTS = {kind: get_type_hints(kind) for kind in (*_FROM_RANK.values(), *_FROM_FRONT_END.values())}


def encode(message: RankMessage | FrontEndMessage) -> bytes:
    """The message's bytes."""
    values, body = vars(message), b""
    match message:
        case Outputs(epoch, outputs):
            values = {"epoch": epoch, "outputs": [one.to_dict() for one in outputs]}
        case BeginEpoch(epoch):
            values = {"epoch": epoch.to_dict()}
        case Commands(epoch, issued):
            values, body = {"epoch": epoch}, encode_commands(issued)
        case KVChunk():
            values, body = {name: value for name, value in values.items() if name != "data"}, message.data
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
        if kind is Outputs:
            values["outputs"] = [Output.from_dict(one) for one in values["outputs"]]
        elif kind is BeginEpoch:
            values["epoch"] = Epoch.from_dict(values["epoch"])
        elif kind is Commands:
            values["commands"] = decode_commands(body)
        elif kind is KVChunk:
            values["data"] = body
        message = kind(**values)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"not a message: {head[:100]!r} ({type(error).__name__}: {error})") from error
    for name, hint in _HINTS[kind].items():
        if not isinstance(getattr(message, name), get_origin(hint) or hint):
            raise ValueError(f"not a message: {head[:100]!r} ({name} is not of type {hint})")
    return message
