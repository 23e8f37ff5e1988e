"""OpenAI's Responses API: its bodies, the chat requests that they stand for, its replies, and those that are kept."""

from __future__ import annotations

import copy
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launch.server.answer import Block, Blocks, Happening, new_call_id
from launch.server.bodies import Part, refused
from launch.server.conversion import Prepared
from launch.server.errors import ApiError
from launch.server.openai_protocol import ChatBody, GenerationBody, Ignored, Off, chat_of
from launch.server.openai_replies import TokenNames, chat_logprobs
from lp.request import Completion, Output, TokenLogprob
from lp.statistics import Statistics

LOGPROBS = "message.output_text.logprobs"
# Fields of a chat request that mean something else in a response, or are made from other fields.
_OWN_FIELDS = {"stream_options", "metadata", "store", "n"}


class TextSettings(Part):
    """How the answer's text is written. format: its structure, as in `response_format` but flat."""

    format: dict[str, Any] | None = None
    verbosity: Ignored = None


class ResponsesBody(GenerationBody):
    """The body of POST /v1/responses, with the extensions that the other routes have as well."""

    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    text: TextSettings | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    n: Off = None
    lookahead_trace: Off = None
    background: Off = None
    conversation: Off = None
    prompt: Off = None
    reasoning: Ignored = None
    truncation: Ignored = None
    max_tool_calls: Ignored = None

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_output_tokens is None else "max_output_tokens"

    @property
    def num_logprobs(self) -> int | None:
        wanted = self.top_logprobs or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None


def to_chat(body: ResponsesBody, earlier: list[Item]) -> ChatBody:
    """The chat request that a response's body stands for.

    earlier: messages of the conversation that it continues, without the instructions that they came with. Raises
    pydantic's ValidationError, and refusals, for what cannot be used.
    """
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    given = {
        "messages": [*system, *earlier, *to_messages(body.input)],
        "max_tokens": body.most_tokens,
        "logprobs": body.num_logprobs is not None,
        "top_logprobs": body.num_logprobs,
        "tools": _tools(body.tools or []) or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text.format if body.text else None) or body.response_format,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    return chat_of(body, _OWN_FIELDS, given)


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise refused(
                "tools[{number}] is of the type {kind}; this server knows functions alone",
                number=number,
                kind=str(tool.get("type"))[:50],
            )
    keys = ("name", "description", "parameters", "strict")
    return [
        {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}
        for tool in tools
    ]


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}


Item = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def to_messages(items: str | Iterable[Item]) -> list[Item]:
    """The messages that a response's input, or the output of an earlier one, stands for.

    Reasoning, an answer and calls that follow each other become one message of the assistant; an answer after calls is
    a message of its own. Raises a refusal for an item that this server does not know.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Item] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise refused("input[{number}] must be an object", number=number)
        _add(messages, item, number)
    return messages


def _add(messages: list[Item], item: Item, number: int) -> None:
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            if messages and messages[-1].get("tool_calls"):
                messages.append({"role": "assistant", "content": ""})
            _assistant(messages)["content"] += _text(item.get("content"), number)
        case "message":
            messages.append({"role": item.get("role"), "content": _text(item.get("content"), number)})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _text(item.get("output"), number)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":
            thoughts = _text(item.get("content") or item.get("summary"), number)
            messages.append({"role": "assistant", "content": "", "reasoning_content": thoughts})
        case other:
            raise refused(
                "input[{number}] is of the type {other}, which this server does not know", number=number, other=other
            )


def _assistant(messages: list[Item]) -> Item:
    """The message of the assistant that an item belongs to: the last one, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in _TEXTS or not isinstance(part.get("text"), str):
            kind = repr(part.get("type"))[:50] if isinstance(part, dict) else type(part).__name__
            message = "input[{number}] must hold texts alone, not {kind}; this server reads text alone"
            raise refused(message, number=number, kind=kind)
    return "".join(part["text"] for part in parts)


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

    response: what the client has been sent so far.
    """

    names_events = True

    def __init__(self, body: ResponsesBody, prepared: Prepared, model_name: str, names: TokenNames, keep: Keep | None):
        """keep: called with the whole response at its end."""
        assert prepared.reading is not None
        self._reader = prepared.reading.begin()
        self._names = names.for_reply(prepared.names_by_id)
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
        self._sent_logprobs: list[dict[str, Any]] = []  # of the current block
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

    def chunks(self, output: Output) -> Iterator[Event]:
        """Yields the events for what a step added."""
        yield from self._write(output.text, output.logprobs, output.finish_reason, output.stats)

    def _write(
        self, text: str, logprobs: list[TokenLogprob] | None, reason: str | None, stats: Statistics
    ) -> Iterator[Event]:
        pieces = self._reader.read(text, is_last=reason is not None)
        if self._wants_logprobs:
            self._logprobs += chat_logprobs(logprobs, self._names)
        yield from self._events(self._blocks.push(pieces))
        if reason is not None:
            yield from self._close(reason in ("length", "dead_end"), stats)

    def _close(self, is_cut: bool, stats: Statistics) -> Iterator[Event]:
        yield from self._events(self._blocks.ensure_one(), is_cut)
        yield from self._events(self._blocks.end(), is_cut)
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

    def _events(self, happenings: Iterable[Happening], is_cut: bool = False) -> Iterator[Event]:
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
        self._sent_logprobs = []
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
        self._sent_logprobs += logprobs
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
                logprobs = [*self._sent_logprobs]
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
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": [*self._sent_logprobs]}

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


@dataclass(frozen=True)
class Stored:
    """A response as its client got it, and the messages of the conversation up to its end, without instructions.

    owner: who may read it; None where the server has no keys. size: about how many bytes it takes.
    """

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    owner: str | None
    size: int


class ResponseStore:
    """The last responses, of a bounded number and size. Those that were used longest ago are dropped first."""

    def __init__(self, most_responses: int, most_bytes: int):
        self.most_responses = most_responses
        self.most_bytes = most_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, stored: Stored) -> None:
        self._stored[stored.response["id"]] = stored
        self._size += stored.size
        while self._stored and (len(self) > self.most_responses or self._size > self.most_bytes):
            _, dropped = self._stored.popitem(last=False)
            self._size -= dropped.size

    def get(self, response_id: str, owner: str | None) -> Stored | None:
        """A response of this owner; None if there is none of this id."""
        found = self._stored.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._stored.move_to_end(response_id)
        return found

    def remove(self, response_id: str, owner: str | None) -> bool:
        """Forgets a response; returns whether there was one."""
        if self.get(response_id, owner) is None:
            return False
        self._size -= self._stored.pop(response_id).size
        return True
