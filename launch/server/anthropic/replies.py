"""Writes messages of Anthropic's API, whole or as the events of a stream."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from launch.server.anthropic.errors import error_body
from launch.server.errors import ApiError
from launch.server.openai.conversion import Prepared
from launch.server.tools.blocks import Block, Blocks, Happening
from launch.server.tools.pieces import new_call_id
from lp.request import Completion, Output
from lp.statistics import Statistics

Event = dict[str, Any]


def usage(stats: Statistics) -> dict[str, Any]:
    """The tokens of a request. Those of the prompt that were cached are counted apart, as Anthropic does."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.tokens,
        **({"lossy": stats.lossy} if stats.lossy else {}),
    }


class MessageReply:
    """The reply to one request. Its events must be made in the order of the stream.

    message: what the client has been told so far.
    """

    names_events = True

    def __init__(self, prepared: Prepared, model_name: str, decode: Callable[[list[int]], str]):
        """decode: the text of tokens, by which the stop sequence is found that ended a text."""
        assert prepared.reading is not None
        (self._request,) = prepared.requests
        self._reader = prepared.reading.begin()
        self._decode = decode
        self._tokens: list[int] = []
        self._num_characters = 0
        self.message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Statistics(prompt_tokens=len(self._request.prompt))),
        }
        self._blocks = Blocks()

    def opening(self) -> Iterator[Event]:
        """Yields the events before the first token."""
        yield {"type": "message_start", "message": {**self.message, "content": []}}

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        """The message that answers a finished request."""
        (completion,) = completions.values()
        reason = completion.finish_reason
        for _ in self._write(completion.text, completion.token_ids, reason, completion.stats):
            pass
        return self.message

    def chunks(self, progress: Output) -> Iterator[Event]:
        """Yields the events for what a step added."""
        yield from self._write(progress.text, progress.tokens, progress.finish_reason, progress.stats)

    def _write(self, text: str, tokens: list[int], reason: str | None, stats: Statistics) -> Iterator[Event]:
        self._tokens += tokens
        self._num_characters += len(text)
        yield from self._tell(self._blocks.push(self._reader.read(text, is_last=reason is not None)))
        if reason is not None:
            yield from self._close(reason, stats)

    def _close(self, reason: str, stats: Statistics) -> Iterator[Event]:
        stop_sequence = self._stop_sequence() if reason == "stop" else None
        yield from self._tell(self._blocks.ensure_one())
        yield from self._tell(self._blocks.end())
        has_calls = any(block.kind == "call" for block in self._blocks.all)
        if reason in ("length", "dead_end"):
            stop_reason = "max_tokens"
        elif stop_sequence is not None:
            stop_reason = "stop_sequence"
        else:
            stop_reason = "tool_use" if has_calls else "end_turn"
        figures = usage(stats)
        self.message |= {"stop_reason": stop_reason, "stop_sequence": stop_sequence, "usage": figures}
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": figures}
        yield {"type": "message_stop"}

    def failure(self, error: ApiError) -> Iterator[Event]:
        """Yields the event of a generation that has failed."""
        yield error_body(error.status, error.body["error"]["message"])

    def _stop_sequence(self) -> str | None:
        """The stop sequence that ended the text: what was generated goes on with it where the text ends."""
        stops = self._request.stopping.stop
        rest = self._decode(self._tokens)[self._num_characters :] if stops else ""
        return next((stop for stop in stops if rest.startswith(stop)), None)

    def _tell(self, happenings: Iterable[Happening]) -> Iterator[Event]:
        for happening, block, more in happenings:
            match happening:
                case "begin":
                    block.id = new_call_id()
                    empty = _written(Block(block.kind, block.number, name=block.name, id=block.id))
                    yield {"type": "content_block_start", "index": block.number, "content_block": empty}
                case "more":
                    yield {"type": "content_block_delta", "index": block.number, "delta": _delta(block, more)}
                case "end":
                    self.message["content"].append(_written(block))
                    yield {"type": "content_block_stop", "index": block.number}


def _delta(block: Block, more: str) -> dict[str, Any]:
    match block.kind:
        case "call":
            return {"type": "input_json_delta", "partial_json": more}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": more}
        case _:
            return {"type": "text_delta", "text": more}


def _written(block: Block) -> dict[str, Any]:
    match block.kind:
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block.text)}
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case _:
            return {"type": "text", "text": block.text}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call. What is no JSON object, as in a call that was cut short, is under the key `partial`."""
    if not arguments:
        return {}
    with contextlib.suppress(ValueError):
        found = json.loads(arguments)
        if isinstance(found, dict):
            return found
    return {"partial": arguments}
