"""Parses answers whose parts are marked, by transformers' ResponseParser.

Calls that are written as JSON are taken as text and read by CallText, so that they can be streamed and may be cut
short. Calls in other notations are read by transformers when their end has come.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from launch.server.tools.call_text import CallText
from launch.server.tools.pieces import CallPiece, Piece, TextPiece, merge

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
