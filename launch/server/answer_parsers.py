"""Parsers that find content, reasoning and tool calls in an answer's text as it comes.

However the text is cut, the pieces join to the same answer."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from transformers.utils.chat_parsing import ResponseParser

from launch.server.answer import CallPiece, Piece, TextPiece, merge

# What Llama 3 may write before a call.
PYTHON_TAG = "<|python_tag|>"


class Parser(Protocol):
    """Turns the text of an answer into pieces."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """Returns what was held back, when the text is over."""
        ...


class TextParser:
    """All text is content."""

    def feed(self, text: str) -> list[Piece]:
        return [TextPiece("content", text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class BareParser:
    """An answer that is nothing but JSON text of calls of known functions; any other answer is content."""

    def __init__(self, names: Collection[str]):
        self._head = ""
        self._names = names
        self._rest: Parser | None = None

    def feed(self, text: str) -> list[Piece]:
        if self._rest is not None:
            return self._rest.feed(text)
        self._head += text
        start = self._head.lstrip()
        if not start or (len(start) < len(PYTHON_TAG) and PYTHON_TAG.startswith(start)):
            return []
        calls = start.removeprefix(PYTHON_TAG).lstrip()
        if start != calls and not calls:
            return []
        if calls[0] in "{[":
            self._rest = CallText(names=self._names)
            return self._rest.feed(calls)
        self._rest = TextParser()
        return self._rest.feed(self._head)

    def finish(self) -> list[Piece]:
        return self._rest.finish() if self._rest is not None else TextParser().feed(self._head)


class ArgumentsParser:
    """An answer that is the arguments of one function and nothing else, as a grammar has forced it to be."""

    def __init__(self, name: str):
        self._name: str | None = name
        self._value: JsonValue | None = None
        self._is_over = False

    def feed(self, text: str) -> list[Piece]:
        more = ""
        for char in text:
            if self._is_over or (self._value is None and char.isspace()):
                continue
            if self._value is None:
                self._value, added = JsonValue(char), char
            else:
                self._is_over, added = self._value.push(char)
            more += added
        return self._emit(more) if more else []

    def finish(self) -> list[Piece]:
        return self._emit("") if self._name is not None else []

    def _emit(self, arguments: str) -> list[Piece]:
        name, self._name = self._name, None
        return [CallPiece(0, name, arguments)]


@dataclass
class FirstCallOnly:
    """Drops all calls but the first, for clients that want no parallel ones."""

    parser: Parser

    def feed(self, text: str) -> list[Piece]:
        return self._kept(self.parser.feed(text))

    def finish(self) -> list[Piece]:
        return self._kept(self.parser.finish())

    @staticmethod
    def _kept(pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not (isinstance(piece, CallPiece) and piece.index)]


_REASONING = ("reasoning_content", "reasoning", "thinking")


class MarkedParser:
    """Finds the parts of an answer by a response template."""

    def __init__(self, template: dict[str, Any], tools: Sequence[dict[str, Any]], prompt: str, content: Any):
        """prompt: the end of the text that the model continues. content: the parser of what is outside of all marks."""
        self._template, self._is_json = _with_calls_as_text(template)
        self._tools: list[Any] = list(tools)
        self._content = content
        self._num_calls = 0
        self._calls = CallText(has_heads=True)
        self._region = ""  # of a call that transformers reads when it is over
        self._parser = self._begin(prompt)

    def _begin(self, prompt: str) -> ResponseParser:
        return ResponseParser(self._template, prefix=prompt, tools=self._tools)

    def feed(self, text: str) -> list[Piece]:
        # What transformers cannot read raises at the character that ends it, and takes with it what it found before.
        parts = [text] if self._is_json else text
        return merge(piece for part in parts for piece in self._feed(part))

    def finish(self) -> list[Piece]:
        try:
            _, events = self._parser.finalize()
        except ValueError:
            events = []
            rest: list[Piece] = [TextPiece("content", self._region)]
        else:
            rest = []
        return merge([*self._pieces(events), *rest, *self._content.finish()])

    def _feed(self, text: str) -> Iterator[Piece]:
        try:
            events = self._parser.feed(text)
        except ValueError:  # the end of a call that cannot be read: what was written is content
            self._parser = self._begin("")
            region, self._region = self._region, ""
            yield TextPiece("content", region)
            return
        yield from self._pieces(events)

    def _pieces(self, events: list[dict[str, Any]]) -> Iterator[Piece]:
        for event in events:
            field, text = event["field"], event.get("text", "")
            if field == "tool_calls":
                yield from self._call(event)
            elif event["type"] == "region_chunk" and field in _REASONING:
                yield TextPiece("reasoning", text)
            elif event["type"] == "region_chunk" and field == "content":
                yield from self._content.feed(text)

    def _call(self, event: dict[str, Any]) -> Iterator[Piece]:
        match event["type"]:
            case "region_open":
                self._calls, self._region = CallText(self._num_calls, has_heads=True), ""
            case "region_chunk" if self._is_json:
                yield from self._calls.feed(event["text"])
            case "region_chunk":
                self._region += event["text"]
            case "region_close" if self._is_json:
                yield from self._calls.finish()
                self._num_calls = self._calls.num_calls
            case _:
                self._region = ""
                values = event["value"] if isinstance(event["value"], list) else [event["value"]]
                for value in values:
                    yield from self._whole_call(value)

    def _whole_call(self, value: Any) -> Iterator[Piece]:
        """A call as a response template yields it: {"type": "function", "function": {"name", "arguments"}}."""
        function = value.get("function", value) if isinstance(value, dict) else {}
        name, arguments = function.get("name"), function.get("arguments", {})
        if not isinstance(name, str):
            yield TextPiece("content", json.dumps(value, ensure_ascii=False))
            return
        yield CallPiece(
            self._num_calls,
            name,
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        )
        self._num_calls += 1


def _with_calls_as_text(template: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A copy of a response template that takes calls in JSON as text, and whether it does."""
    template = copy.deepcopy(template)
    calls = template["fields"].get("tool_calls", {})
    is_json = calls.get("content", "json") == "json" and not calls.get("content_args")
    is_json = is_json and "(?P<" not in calls.get("open_pattern", "")
    if is_json and calls:
        marks = {key: value for key, value in calls.items() if key.startswith(("open", "close"))}
        template["fields"]["tool_calls"] = {
            **marks,
            "content": "text",
            "content_args": {"strip": False},
            "repeats": True,
        }
    return template, is_json


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
        self._has_name = False
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
        if self._has_name or (self._at is _At.BETWEEN and self._is_separator(self._raw) and self.num_calls):
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
        if not self._has_name:
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
            yield from self._emit_name(head["name"])
            self._value = JsonValue(char)
            yield from self._emit_arguments(char)
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
                yield from self._emit_arguments(char)
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
            yield from self._emit_arguments(more)
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
            yield from self._emit_name(name) if isinstance(name, str) and name else self._break()
        elif self._key in ("arguments", "parameters"):
            encoded = _loads(text, None)  # some models write the arguments as a string that holds JSON
            yield from self._emit_arguments(encoded if isinstance(encoded, str) and encoded else "{}")

    def _emit_name(self, name: str) -> Iterator[Piece]:
        if self._name is not None:
            return
        if self._names is not None and name not in self._names:
            yield from self._break()
            return
        self._name, self._has_name, self._raw = name, True, ""
        yield CallPiece(self.num_calls, name, self._waiting)
        self.num_calls += 1

    def _emit_arguments(self, more: str) -> Iterator[Piece]:
        self._has_arguments = True
        if self._has_name:
            yield CallPiece(self.num_calls - 1, None, more)
        else:
            self._waiting += more

    def _close_object(self) -> Iterator[Piece]:
        self._depth -= 1
        if self._depth:
            self._at = _At.KEY
        elif not self._has_name:
            yield from self._break()
        else:
            if not self._has_arguments:
                yield from self._emit_arguments("{}")
            self._begin()

    def _break(self) -> Iterator[Piece]:
        self._at, self._value = _At.BROKEN, None
        yield TextPiece("content", self._raw)
        self._raw = ""


def _loads(text: str, otherwise: str | None):
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return otherwise


class JsonValue:
    """One JSON value of a growing text.

    text: the value so far. Control characters inside of strings, which models write and JSON forbids, are escaped.
    """

    def __init__(self, first: str):
        """first: the value's first character."""
        self.text = first
        self.is_string = first == '"'
        self.is_object = first == "{"
        self._in_string = self.is_string
        self._escaped = False
        self._depth = int(first in "{[")

    def push(self, char: str) -> tuple[bool, str]:
        """Adds a character. Returns whether the value is over, and what this has added to its text.

        The character that ends a number or a word, such as a comma, is not part of it and adds nothing.
        """
        if self._in_string:
            more = char if char >= " " else json.dumps(char)[1:-1]
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif not self._depth and (char in ",]}" or char.isspace()):
            return True, ""
        else:
            more = char
            self._in_string = char == '"'
            self._depth += (char in "{[") - (char in "}]")
        self.text += more
        closes = (char == '"' and self.is_string) or char in "}]"
        return closes and not self._in_string and not self._depth, more
