"""Reads tool calls from JSON text as it comes, so that the arguments of a call can be streamed.

The forms that models write: an object or several, or an array of them, with the keys name and arguments (or
parameters), which may lie under the key function; and Mistral's NAME[ARGS]{...}.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator
from enum import Enum, auto

from launch.server.tools.json_value import JsonValue
from launch.server.tools.pieces import CallPiece, Piece, TextPiece, merge

_HEAD = re.compile(r"[\s\[\],;]*(?:(?P<name>[\w.-]+)(?:\[CALL_ID\][\w-]+)?\[ARGS\]\s*)?")
_SEPARATOR = "[TOOL_CALLS]"


class _At(Enum):
    BETWEEN = auto()  # before, between or after calls
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    BROKEN = auto()  # the text is no call; the rest is content


class CallText:
    """The calls in a growing text. Text that turns out not to be a call becomes content.

    num_calls: the number of calls so far.
    """

    def __init__(self, num_calls: int = 0, names: Collection[str] | None = None, has_heads: bool = False):
        """num_calls: the calls that came before this text. names: other functions than these are no calls; None allows
        all names. has_heads: the name may come before the arguments, as NAME[ARGS].
        """
        self.num_calls = num_calls
        self._names = names
        self._has_heads = has_heads
        self._raw = ""  # text since the last call ended, until it is known to be a call
        self._begin()

    def _begin(self) -> None:
        self._at = _At.BETWEEN
        self._name: str | None = None
        self._told_name = False
        self._waiting = ""  # arguments that came before the name
        self._has_arguments = False
        self._is_bare = False  # the object is the arguments, and the call ends with it
        self._depth = 0  # how many objects the call is inside of
        self._key = ""
        self._value: JsonValue | None = None

    def feed(self, text: str) -> list[Piece]:
        """Adds text; returns what is now known."""
        return merge(piece for char in text for piece in self._push(char))

    def finish(self) -> list[Piece]:
        """Returns what is left when the text is over. An unfinished call stays as it is."""
        if self._told_name or (self._at is _At.BETWEEN and self._is_separator(self._raw) and self.num_calls):
            return []
        raw, self._raw = self._raw, ""
        return merge([TextPiece("content", raw)])

    @staticmethod
    def _is_separator(head: str) -> bool:
        return not head.replace(_SEPARATOR, "").strip(" \t\r\n[],;")

    def _push(self, char: str) -> Iterator[Piece]:
        if self._at is _At.BROKEN:
            yield TextPiece("content", char)
            return
        if not self._told_name:
            self._raw += char
        if self._value is not None:
            yield from self._push_value(char)
        elif self._at is _At.BETWEEN:
            yield from self._push_head(char)
        elif not char.isspace():
            yield from self._push_structure(char)

    def _push_head(self, char: str) -> Iterator[Piece]:
        if char != "{":
            if not (self._has_heads or self._is_separator(char)):
                yield from self._break()
            return
        head = _HEAD.fullmatch(self._raw[:-1].replace(_SEPARATOR, ""))
        if head is None:
            yield from self._break()
        elif head["name"]:
            self._is_bare, self._depth, self._key = True, 1, "arguments"
            yield from self._tell_name(head["name"])
            self._value = JsonValue(char)
            yield from self._argue(char)
        else:
            self._at, self._depth = _At.KEY, 1

    def _push_structure(self, char: str) -> Iterator[Piece]:
        if self._at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif self._at is _At.KEY and char == '"':
            self._key, self._value = "", JsonValue(char)
        elif self._at is _At.KEY and char == "}":
            yield from self._close_object()
        elif self._at is _At.VALUE and self._key == "function" and char == "{":
            self._at, self._depth = _At.KEY, self._depth + 1
        elif self._at is _At.VALUE and char not in ",:]}":
            if self._has_arguments and self._key in ("arguments", "parameters"):
                self._key = ""  # a call has one set of arguments: the first
            self._value = JsonValue(char)
            if self._streams:
                yield from self._argue(char)
        elif not (self._at is _At.KEY and char == ","):
            yield from self._break()

    @property
    def _streams(self) -> bool:
        """Whether the value is an object of arguments, which is given out as it comes."""
        return self._key in ("arguments", "parameters") and self._value is not None and self._value.is_object

    def _push_value(self, char: str) -> Iterator[Piece]:
        assert self._value is not None
        is_over, more = self._value.push(char)
        if more and self._streams:
            yield from self._argue(more)
        if not is_over:
            return
        value, text = self._value, self._value.text
        if self._at is _At.KEY:
            self._value, self._at, self._key = None, _At.COLON, _loads(text, "")
            return
        if not self._streams:
            yield from self._take(text)
        self._value = None
        if self._at is not _At.BROKEN:
            self._at = _At.KEY
            if self._is_bare:
                yield from self._close_object()
            elif not more and not value.is_string:  # a number or a word ends with what comes after it
                yield from self._push_structure(char) if not char.isspace() else ()

    def _take(self, text: str) -> Iterator[Piece]:
        """Uses a whole value that is not streamed."""
        if self._key in ("name", "function"):
            name = _loads(text, None)
            yield from self._tell_name(name) if isinstance(name, str) and name else self._break()
        elif self._key in ("arguments", "parameters"):
            encoded = _loads(text, None)  # some models write the arguments as a string that holds JSON
            yield from self._argue(encoded if isinstance(encoded, str) and encoded else "{}")

    def _tell_name(self, name: str) -> Iterator[Piece]:
        if self._name is not None:
            return
        if self._names is not None and name not in self._names:
            yield from self._break()
            return
        self._name, self._told_name, self._raw = name, True, ""
        yield CallPiece(self.num_calls, name, self._waiting)
        self.num_calls += 1

    def _argue(self, more: str) -> Iterator[Piece]:
        self._has_arguments = True
        if self._told_name:
            yield CallPiece(self.num_calls - 1, None, more)
        else:
            self._waiting += more

    def _close_object(self) -> Iterator[Piece]:
        self._depth -= 1
        if self._depth:
            self._at = _At.KEY
        elif not self._told_name:
            yield from self._break()
        else:
            if not self._has_arguments:
                yield from self._argue("{}")
            self._begin()

    def _break(self) -> Iterator[Piece]:
        self._at, self._value = _At.BROKEN, None
        yield TextPiece("content", self._raw)
        self._raw = ""


def _loads(text: str, otherwise: str | None):
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return otherwise
