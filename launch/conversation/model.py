"""What a chat asks of the model that answers it, and the settings that a person can change in the midst of a chat."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lp.methods.registry import from_dict
from lp.sampling.settings import Sampling
from lp.text.chat_template import Message

# How the value of each sampling setting is read.
SAMPLING: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "no_repeat_ngram": int,
    "seed": int,
}
KEYS = (*SAMPLING, "max_tokens", "system", "decode", "decode.NAME")


@dataclass(frozen=True)
class Options:
    """system: the system prompt. max_tokens: the longest answer; None takes all the room in the context.

    decode: the method, under "method", and its settings; what is left out is as the ranks or the server were started.
    sampling: likewise, what is None.
    """

    system: str | None = None
    max_tokens: int | None = None
    decode: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)

    def changed(self, assignment: str, start: Options) -> Options:
        """These options after `key=value`; an empty value takes that of `start`. Raises ValueError."""
        key, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals:
            raise ValueError(f"{assignment!r} is not of the form key=value; the keys are {', '.join(KEYS)}")
        if key in SAMPLING:
            read = _number(key, value, SAMPLING[key]) if value else getattr(start.sampling, key)
            return replace(self, sampling=replace(self.sampling, **{key: read}))
        if key == "max_tokens":
            return replace(self, max_tokens=_positive(key, value) if value else start.max_tokens)
        if key == "system":
            return replace(self, system=value or start.system)
        if key == "decode":
            return replace(self, decode=_method(value) if value else start.decode)
        if name := key.removeprefix("decode.") if key.startswith("decode.") else "":
            return replace(self, decode=self._with_decode(name, value, start))
        raise ValueError(f"{key!r} is no setting; the settings are {', '.join(KEYS)}")

    def _with_decode(self, name: str, value: str, start: Options) -> dict[str, Any]:
        decode = {**self.decode}
        if value:
            decode[name] = _decode_value(name, value)
        elif name in start.decode:
            decode[name] = start.decode[name]
        else:
            decode.pop(name, None)
        return decode

    def lines(self) -> list[str]:
        """The settings that are not left to the model or the server, as `key=value`."""
        given = {name: getattr(self.sampling, name) for name in SAMPLING}
        given |= {"max_tokens": self.max_tokens, "system": self.system, "decode": self.decode.get("method")}
        given |= {f"decode.{name}": value for name, value in self.decode.items() if name != "method"}
        return [f"{key}={value}" for key, value in given.items() if value is not None]


def _number(key: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        wanted = "an integer" if kind is int else "a number"
        raise ValueError(f"{key} must be {wanted}, not {value!r}") from None


def _positive(key: str, value: str) -> int:
    number = int(_number(key, value, int))
    if number < 1:
        raise ValueError(f"{key}={number} must be at least 1")
    return number


def _method(name: str) -> dict[str, Any]:
    from_dict({"method": name})  # raises ValueError for an unknown one
    return {"method": name}


def _decode_value(name: str, value: str) -> bool | int:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(_number(f"decode.{name}", value, int))


class AnswerError(Exception):
    """There is no answer, or no more of it; the message is for the user. is_too_long: the context is full."""

    def __init__(self, message: str, is_too_long: bool = False):
        super().__init__(message)
        self.is_too_long = is_too_long


@dataclass(frozen=True)
class Figures:
    """What an answer has cost so far. tokens_per_s: from the start of the first step to the last token."""

    tokens: int
    tokens_per_step: float
    tokens_per_s: float


@dataclass(frozen=True)
class Part:
    """What one step, or one message of a server, adds to an answer.

    figures: None if a server does not say them. finish_reason: None until the last part.
    """

    text: str
    num_tokens: int
    figures: Figures | None
    finish_reason: str | None


class ChatModel(Protocol):
    """Answers conversations, one at a time. where: what it is and where it runs, for the greeting."""

    where: str

    def check(self, options: Options) -> None:
        """Raises ValueError naming the first setting that is out of range, as far as that is known beforehand."""
        ...

    def answer(self, messages: Sequence[Message], options: Options) -> Generator[Part, None, None]:
        """The parts of an answer as they come. Closing the iterator ends the answer. Raises AnswerError."""
        ...
