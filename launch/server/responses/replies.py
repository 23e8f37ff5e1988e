"""Writes responses, whole or as the events of a stream, in the order in which OpenAI sends them."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from launch.server.errors import ApiError
from launch.server.openai.choices import chat_logprobs
from launch.server.openai.conversion import Prepared
from launch.server.openai.tokens import TokenNames
from launch.server.responses.protocol import ResponsesBody
from launch.server.tools.blocks import Block, Blocks, Happening
from launch.server.tools.pieces import new_call_id
from lp.request import Completion, Output, TokenLogprob
from lp.statistics import Statistics

Event = dict[str, Any]
Keep = Callable[[dict[str, Any]], None]
_PREFIX = {"content": "msg", "reasoning": "rs", "call": "fc"}


def usage(stats: Statistics) -> dict[str, Any]:
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": stats.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.prompt_tokens + stats.tokens,
        **({"lossy": stats.lossy} if stats.lossy else {}),
    }


class ResponseReply:
    """The reply to one request. Its events must be made in the order of the stream.

    response: what the client has been told so far.
    """

    names_events = True

    def __init__(self, body: ResponsesBody, prepared: Prepared, model_name: str, names: TokenNames, keep: Keep | None):
        """keep: called with the whole response at its end."""
        assert prepared.reading is not None
        self._reader = prepared.reading.begin()
        self._names = names
        self._wants_logprobs = prepared.wants_logprobs
        self._keep = keep
        self.response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.most_tokens,
            "metadata": body.metadata or {},
            "model": model_name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        self._blocks = Blocks()
        self._calls: dict[int, str] = {}  # the ids of calls, by their blocks
        self._logprobs: list[dict[str, Any]] = []  # of tokens since the last event of text
        self._told_logprobs: list[dict[str, Any]] = []  # of the current block
        self._num_events = 0

    def opening(self) -> Iterator[Event]:
        """Yields the events before the first token."""
        yield self._event("response.created", response=copy.deepcopy(self.response))
        yield self._event("response.in_progress", response=copy.deepcopy(self.response))

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        """The response to a finished request."""
        (completion,) = completions.values()
        reason = completion.finish_reason
        for _ in self._write(completion.text, completion.logprobs, reason, completion.stats):
            pass
        return self.response

    def chunks(self, progress: Output) -> Iterator[Event]:
        """Yields the events for what a step added."""
        yield from self._write(progress.text, progress.logprobs, progress.finish_reason, progress.stats)

    def _write(
        self, text: str, logprobs: list[TokenLogprob] | None, reason: str | None, stats: Statistics
    ) -> Iterator[Event]:
        pieces = self._reader.read(text, is_last=reason is not None)
        if self._wants_logprobs:
            self._logprobs += chat_logprobs(logprobs, self._names)
        yield from self._tell(self._blocks.push(pieces))
        if reason is not None:
            yield from self._close(reason in ("length", "dead_end"), stats)

    def _close(self, is_cut: bool, stats: Statistics) -> Iterator[Event]:
        yield from self._tell(self._blocks.ensure_one(), is_cut)
        yield from self._tell(self._blocks.end(), is_cut)
        self.response["status"] = "incomplete" if is_cut else "completed"
        self.response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        self.response["usage"] = usage(stats)
        if self._keep:
            self._keep(self.response)
        yield self._event(f"response.{self.response['status']}", response=copy.deepcopy(self.response))

    def failure(self, error: ApiError) -> Iterator[Event]:
        """Yields the event of a generation that has failed."""
        found = error.body["error"]
        self.response |= {"status": "failed", "error": {"code": found["code"], "message": found["message"]}}
        yield self._event("response.failed", response=copy.deepcopy(self.response))

    def _event(self, kind: str, **values: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **values}

    def _tell(self, happenings: Iterable[Happening], is_cut: bool = False) -> Iterator[Event]:
        for happening, block, more in happenings:
            match happening:
                case "begin":
                    yield from self._begin(block)
                case "more":
                    yield self._more(block, more)
                case "end":
                    yield from self._end(block, "incomplete" if is_cut else "completed")

    def _begin(self, block: Block) -> Iterator[Event]:
        block.id = f"{_PREFIX[block.kind]}_{secrets.token_hex(16)}"
        self._calls[block.number] = new_call_id()
        self._told_logprobs = []
        item = self._item(block, "in_progress") | ({"content": []} if block.kind != "call" else {})
        yield self._event("response.output_item.added", output_index=block.number, item=item)
        if block.kind != "call":
            yield self._event("response.content_part.added", **self._place(block), part=self._part(block))

    def _more(self, block: Block, more: str) -> Event:
        if block.kind != "content":
            self._logprobs = []
        if block.kind == "call":
            return self._event("response.function_call_arguments.delta", **self._item_place(block), delta=more)
        if block.kind == "reasoning":
            return self._event("response.reasoning_text.delta", **self._place(block), delta=more)
        return self._event(
            "response.output_text.delta", **self._place(block), delta=more, logprobs=self._take_logprobs()
        )

    def _take_logprobs(self) -> list[dict[str, Any]]:
        """The log-probabilities of what has become text."""
        logprobs, self._logprobs = self._logprobs, []
        self._told_logprobs += logprobs
        return logprobs

    def _end(self, block: Block, status: str) -> Iterator[Event]:
        if block.kind == "call":
            place = self._item_place(block)
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **place, name=block.name, arguments=block.text)
        else:
            place = self._place(block)
            if block.kind == "reasoning":
                yield self._event("response.reasoning_text.done", **place, text=block.text)
            else:
                self._take_logprobs()
                logprobs = [*self._told_logprobs]
                yield self._event("response.output_text.done", **place, text=block.text, logprobs=logprobs)
            yield self._event("response.content_part.done", **place, part=self._part(block))
        item = self._item(block, status)
        self.response["output"].append(item)
        yield self._event("response.output_item.done", output_index=block.number, item=item)

    def _item_place(self, block: Block) -> dict[str, Any]:
        return {"item_id": block.id, "output_index": block.number}

    def _place(self, block: Block) -> dict[str, Any]:
        return {**self._item_place(block), "content_index": 0}

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": [*self._told_logprobs]}

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        match block.kind:
            case "call":
                values = {"type": "function_call", "call_id": self._calls[block.number], "name": block.name}
                return {"id": block.id, **values, "arguments": block.text, "status": status}
            case "reasoning":
                values = {"type": "reasoning", "summary": [], "content": [self._part(block)]}
                return {"id": block.id, **values, "encrypted_content": None, "status": status}
            case _:
                values = {"type": "message", "role": "assistant", "content": [self._part(block)]}
                return {"id": block.id, **values, "status": status}
