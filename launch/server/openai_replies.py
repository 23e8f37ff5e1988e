"""Writes replies of one or more choices in OpenAI's formats, whole or as the chunks of a stream.

Knows nothing of HTTP.
"""

from __future__ import annotations

import copy
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from launch.server.answer import CallPiece, Piece, join, new_call_id
from launch.server.conversion import Prepared
from launch.server.errors import ApiError
from launch.server.tools import Reading
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import Completion, Output, Request, TokenLogprob, mean_logprob
from lp.statistics import Statistics
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason

# Of the JSON of a step's trace.
MOST_TRACE_BYTES = 1000


class Reply(ABC):
    """The reply to one body. Its chunks must be made in the order of the stream.

    kind, chunk_kind: names of the whole reply and of a chunk.
    """

    kind: str
    chunk_kind: str
    names_events = False

    def __init__(self, prepared: Prepared, model_name: str, names: TokenNames):
        self.prepared = prepared
        self.names = names.for_reply(prepared.names_by_id)
        self._head = {"id": prepared.id, "created": int(time.time()), "model": model_name}
        if lossy := prepared.requests[0].decode.lossy:  # all of a body's requests have the same method
            self._head["lossy"] = lossy
        # The choices of a stream. Every candidate is one: where not all become choices, nothing can be streamed.
        self._choices: dict[str, Choice] = {}
        self._spent = {request.id: Statistics(len(request.prompt)) for request in prepared.requests}
        self._open = set(self._spent)

    @abstractmethod
    def choice(self, index: int) -> Choice:
        """Begins the choice with this index."""

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        """The reply to finished requests. completions: by the requests' ids."""
        chosen = _best(self.prepared, completions)
        choices = [self.choice(index).whole(completions[name]) for index, name in enumerate(chosen)]
        spent = {name: completion.stats for name, completion in completions.items()}
        return {**self._head, "object": self.kind, "choices": choices, **self._figures(spent)}

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yields the chunks before the first token."""
        self._choices = {request.id: self.choice(number) for number, request in enumerate(self.prepared.requests)}
        for choice in self._choices.values():
            yield from map(self._chunk, choice.opening())

    def chunks(self, output: Output) -> Iterator[dict[str, Any]]:
        """Yields the chunks for what a step added to one of the requests.

        A step whose text is held back yields none, unless log-probabilities or its trace are wanted. The trace comes
        with the step's last chunk.
        """
        self._spent[output.request_id] = output.stats
        trace = {"lookahead": output.trace.within(MOST_TRACE_BYTES).to_dict()} if output.trace else {}
        figures = self._figures(self._spent) if self.prepared.wants_usage_so_far else {}
        parts = [*self._choices[output.request_id].parts(output)]
        for number, part in enumerate(parts, 1):
            yield {**self._chunk(part), **figures, **(trace if number == len(parts) else {})}
        if output.finish_reason:
            self._open.discard(output.request_id)
            if not self._open and self.prepared.wants_usage:
                yield {**self._head, "object": self.chunk_kind, "choices": [], **self._figures(self._spent)}

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yields the chunk of an error after the stream has begun."""
        yield error.body

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        return {**chunk, "usage": None} if self.prepared.wants_usage else chunk

    def _figures(self, spent: Mapping[str, Statistics]) -> dict[str, Any]:
        """The usage, and this project's extension: how the requests were decoded, and what that cost."""
        figures = [_lookahead(request, spent[request.id]) for request in self.prepared.requests]
        extension = figures[0] if len(figures) == 1 else {"requests": figures}
        return {"usage": usage(self.prepared, spent), "lookahead": extension}


class CompletionReply(Reply):
    """The reply of /v1/completions."""

    kind = chunk_kind = "text_completion"

    def __init__(self, prepared: Prepared, model_name: str, names: TokenNames, checkpoint: CheckpointInfo):
        self._tokenizer = checkpoint.tokenizer
        super().__init__(prepared, model_name, names)

    def choice(self, index: int) -> Choice:
        return CompletionChoice(index, self.prepared, self.names, self._tokenizer)


class ChatReply(Reply):
    """The reply of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, index: int) -> Choice:
        assert self.prepared.reading is not None
        return ChatChoice(index, self.prepared, self.prepared.reading, self.names)

    def whole(self, completions: Mapping[str, Completion]) -> dict[str, Any]:
        reply = super().whole(completions)
        if (num := self.prepared.num_of_prompt) is not None:
            reply["prompt_logprobs"] = prompt_logprobs(completions[self.prepared.id], num, self.names)
        return reply


def usage(prepared: Prepared, spent: Mapping[str, Statistics]) -> dict[str, Any]:
    """What all requests of a body have cost: a prompt counts once, and so do its cached tokens; all that was generated
    counts. spent: by the requests' ids.
    """
    of_prompts = [spent[request.id] for request in prepared.requests[:: prepared.num_candidates]]
    prompt_tokens = sum(stats.prompt_tokens for stats in of_prompts)
    tokens = sum(stats.tokens for stats in spent.values())
    accepted = sum(stats.accepted.total() for stats in spent.values())
    proposed = sum(stats.proposed.total() for stats in spent.values())
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in of_prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def _lookahead(request: Request, stats: Statistics) -> dict[str, Any]:
    return {"decode": request.decode.to_dict(), "seed": request.sampling.seed, **stats.to_dict()}


def _best(prepared: Prepared, completions: Mapping[str, Completion]) -> list[str]:
    """The ids of the requests that become choices: of each prompt the best, best first, where there are more."""
    names = [request.id for request in prepared.requests]
    size, wanted = prepared.num_candidates, prepared.num_choices
    if size == wanted:
        return names
    prompts = [names[begin : begin + size] for begin in range(0, len(names), size)]
    return [
        name
        for of_prompt in prompts
        for name in sorted(of_prompt, key=lambda name: mean_logprob(completions[name].logprobs), reverse=True)[:wanted]
    ]


# OpenAI's API gives this value for impossible tokens, because JSON has no infinity.
LOWEST_LOGPROB = -9999.0
# What a client is told of a text that its grammar lets neither end nor go on. Clients take "length" for a text that is
# not whole.
DEAD_END = "length", "dead_end: the grammar allows no token here that the request's other settings allow"


class Choice(Protocol):
    """One choice of a reply. Its parts must be made in the order of the stream."""

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The choice with all of its text."""
        ...

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yields the parts before the first token."""
        ...

    def parts(self, output: Output) -> Iterator[dict[str, Any]]:
        """Yields the parts for what a step added; none while its text is held back, unless steps are traced."""
        ...


class CompletionChoice:
    """A choice of /v1/completions. An echoed prompt comes first, with its log-probabilities if they are wanted."""

    def __init__(self, index: int, prepared: Prepared, names: TokenNames, tokenizer: PreTrainedTokenizerFast):
        number = index // prepared.num_choices
        request = prepared.requests[number * prepared.num_candidates]
        self._index = index
        self._prepared = prepared
        self._names = names
        self._echo = prepared.echoes[number]
        self._prompt = request.prompt
        # Offsets count from where the text of the choice begins for which there are log-probabilities.
        before = [] if prepared.num_echoed is not None else request.prompt
        self._detokenizer = Detokenizer(tokenizer, before, request.stopping.skip_special_tokens)
        self._offset = 0  # number of characters of the tokens so far

    def whole(self, completion: Completion) -> dict[str, Any]:
        logprobs = self._logprobs(completion.prompt_logprobs, completion.logprobs, completion.token_ids)
        choice = self._part(self._echo + completion.text, logprobs, completion.finish_reason)
        if (num := self._prepared.num_of_prompt) is not None:
            choice["prompt_logprobs"] = prompt_logprobs(completion, num, self._names)
        return {**choice, **beams_of(completion)}

    def opening(self) -> Iterator[dict[str, Any]]:
        if self._echo and self._prepared.num_echoed is None:
            yield self._part(self._echo, None, None)

    def parts(self, output: Output) -> Iterator[dict[str, Any]]:
        if self._prepared.num_echoed is not None and output.prompt_logprobs is not None:
            yield self._part(self._echo, self._logprobs(output.prompt_logprobs, None, []), None)
        wants_all = self._prepared.wants_logprobs or self._prepared.is_traced
        if output.text or output.finish_reason or (wants_all and output.tokens):
            logprobs = self._logprobs(None, output.logprobs, output.tokens)
            yield self._part(output.text, logprobs, output.finish_reason)

    def _part(self, text: str, logprobs: dict[str, Any] | None, reason: FinishReason | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, **end_of(reason)}

    def _logprobs(
        self, of_prompt: list[TokenLogprob] | None, found: list[TokenLogprob] | None, tokens: list[int]
    ) -> dict[str, Any] | None:
        """The log-probabilities of the prompt, if it is echoed and they are known, and those of generated tokens."""
        if not self._prepared.wants_logprobs:
            return None
        entries: list[TokenLogprob | None] = [*(found or [])]
        if self._prepared.num_echoed is not None and of_prompt is not None:
            entries = [None, *of_prompt, *entries]  # nothing comes before the first token
            tokens = [*self._prompt, *tokens]
        return {
            "tokens": [self._names.name(token) for token in tokens],
            "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
            "top_logprobs": [entry and self._top(entry) for entry in entries],
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """Returns the log-probabilities of the alternatives and, if it is not among them, of the token itself.

        Of several tokens with the same name, the likeliest counts.
        """
        likeliest: dict[str, float] = {}
        num = self._prepared.requests[0].sampling.logprobs
        for token, logprob in (*found.top[:num], (found.token, found.logprob)):
            likeliest.setdefault(self._names.name(token), finite(logprob))
        return likeliest

    def _next_offset(self, token: int) -> int:
        """Returns the character of the text at which the token begins, and moves past the token."""
        offset = self._offset
        self._offset += len(self._detokenizer.push(token))
        return offset


class ChatChoice:
    """A choice of /v1/chat/completions. reading: how its text is read."""

    def __init__(self, index: int, prepared: Prepared, reading: Reading, names: TokenNames):
        self._index = index
        self._reader = reading.begin()
        self._is_named = reading.choice.mode == "named"
        self._wants_logprobs, self._is_traced = prepared.wants_logprobs, prepared.is_traced
        self._wants_function_call = prepared.wants_function_call
        self._names = names
        self._has_calls = False

    def whole(self, completion: Completion) -> dict[str, Any]:
        answer = join(self._read(completion.text, completion.finish_reason or "stop"))
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [
                {"id": new_call_id(), "type": "function", "function": asdict(call)} for call in answer.calls
            ]
        message = self._with_call(message)
        choice = {"index": self._index, "message": message, "logprobs": self._logprobs(completion.logprobs)}
        return {**choice, **self._end(completion.finish_reason), **beams_of(completion)}

    def opening(self) -> Iterator[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        yield {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def parts(self, output: Output) -> Iterator[dict[str, Any]]:
        delta = self._with_call(_delta(self._read(output.text, output.finish_reason)))
        has_step = self._is_traced and output.tokens
        if delta or output.finish_reason or self._wants_logprobs or has_step:
            part = {"index": self._index, "delta": delta, "logprobs": self._logprobs(output.logprobs)}
            yield {**part, **self._end(output.finish_reason)}

    def _read(self, text: str, reason: FinishReason | None) -> list[Piece]:
        pieces = self._reader.read(text, is_last=reason is not None)
        self._has_calls = self._has_calls or any(isinstance(piece, CallPiece) for piece in pieces)
        return pieces

    def _end(self, reason: FinishReason | None) -> dict[str, Any]:
        """Why the choice ended. As in OpenAI's API, one that had to be a call of a named function ends with `stop`."""
        if reason == "stop" and self._has_calls and not self._is_named:
            return {"finish_reason": "function_call" if self._wants_function_call else "tool_calls"}
        return end_of(reason)

    def _with_call(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message, or what is added to it, in which clients that know functions and no tools find the call."""
        if self._wants_function_call and (calls := message.pop("tool_calls", None)):
            message["function_call"] = calls[0]["function"]
        return message

    def _logprobs(self, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        return {"content": chat_logprobs(logprobs, self._names), "refusal": None}


def chat_logprobs(logprobs: list[TokenLogprob] | None, names: TokenNames) -> list[dict[str, Any]]:
    """The log-probabilities of tokens, as chats and responses have them."""

    def named(token: int, logprob: float) -> dict[str, Any]:
        return {"token": names.name(token), "bytes": [*names.bytes_of(token)], "logprob": finite(logprob)}

    return [
        {**named(found.token, found.logprob), "top_logprobs": [named(*other) for other in found.top]}
        for found in logprobs or []
    ]


def _delta(pieces: list[Piece]) -> dict[str, Any]:
    """What a step adds to a message."""
    delta: dict[str, Any] = {}
    for piece in pieces:
        if isinstance(piece, CallPiece):
            head = {} if piece.name is None else {"id": new_call_id(), "type": "function"}
            function = ({} if piece.name is None else {"name": piece.name}) | {"arguments": piece.arguments}
            delta.setdefault("tool_calls", []).append({"index": piece.index, **head, "function": function})
        else:
            key = "content" if piece.kind == "content" else "reasoning_content"
            delta[key] = delta.get(key, "") + piece.text
    return delta


def prompt_logprobs(completion: Completion, num: int, names: TokenNames) -> list[dict[str, Any] | None]:
    """The field prompt_logprobs as in vLLM: for each token of the prompt, tokens by their ids, itself first.

    num: of the alternatives. A rank is given for those tokens that are among the likeliest that are known.
    """
    found: list[dict[str, Any] | None] = [None]
    for entry in completion.prompt_logprobs or []:
        ranks = {token: number for number, (token, _) in enumerate(entry.top, 1)}
        entries = {entry.token: entry.logprob, **dict(entry.top[:num])}
        found.append(
            {
                str(token): {"logprob": finite(logprob), "rank": ranks.get(token), "decoded_token": names.name(token)}
                for token, logprob in entries.items()
            }
        )
    return found


def beams_of(completion: Completion) -> dict[str, Any]:
    """What a choice says of a beam search: all texts that were asked for, with their scores."""
    return {} if completion.beams is None else {"beams": completion.beams.shown()}


def end_of(reason: FinishReason | None) -> dict[str, Any]:
    """What a reply's choice says of its end: `stop_reason` is only there if the end is no ordinary one."""
    if reason == "dead_end":
        return {"finish_reason": DEAD_END[0], "stop_reason": DEAD_END[1]}
    return {"finish_reason": reason}


def finite(logprob: float) -> float:
    """The log-probability as JSON can write it."""
    return max(logprob, LOWEST_LOGPROB)


_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


class TokenNames:
    """Finds the bytes and names of tokens, in byte-level and in SentencePiece vocabularies.

    It is made once for a tokenizer, as a large vocabulary takes it seconds.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer
        self._by_id = False
        self._special = set(tokenizer.added_tokens_decoder)
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"])

    def bytes_of(self, token: int) -> bytes:
        """Returns the bytes that a token stands for.

        They are empty for an id that the tokenizer does not know: a model may have more ids than its tokenizer.
        """
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        assert isinstance(piece, str)
        if token in self._special:
            return piece.encode()
        if self._is_byte_level and all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        if byte := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("▁", " ").encode()

    def name(self, token: int) -> str:
        """Returns the token's text. Bytes that are not text are written as in OpenAI's API: bytes:\\xe2\\x82."""
        if self._by_id:
            return f"token_id:{token}"
        data = self.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def for_reply(self, by_id: bool) -> TokenNames:
        """by_id: whether tokens are named by their ids, which are unique, as in vLLM: token_id:17."""
        if not by_id:
            return self
        named = copy.copy(self)
        named._by_id = True
        return named
