"""Writes the choices of replies in OpenAI's formats: one text each, whole or part by part. Knows nothing of usage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Protocol

from transformers import PreTrainedTokenizerFast

from launch.server.openai.conversion import Prepared
from launch.server.openai.tokens import TokenNames
from launch.server.tools.pieces import CallPiece, Piece, join, new_call_id
from launch.server.tools.reader import Reading
from lp.request import Completion, Output, TokenLogprob
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason

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

    def parts(self, progress: Output) -> Iterator[dict[str, Any]]:
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

    def parts(self, progress: Output) -> Iterator[dict[str, Any]]:
        if self._prepared.num_echoed is not None and progress.prompt_logprobs is not None:
            yield self._part(self._echo, self._logprobs(progress.prompt_logprobs, None, []), None)
        wants_all = self._prepared.wants_logprobs or self._prepared.is_traced
        if progress.text or progress.finish_reason or (wants_all and progress.tokens):
            logprobs = self._logprobs(None, progress.logprobs, progress.tokens)
            yield self._part(progress.text, logprobs, progress.finish_reason)

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
        choice = {"index": self._index, "message": message, "logprobs": self._logprobs(completion.logprobs)}
        return {**choice, **self._end(completion.finish_reason), **beams_of(completion)}

    def opening(self) -> Iterator[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        yield {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def parts(self, progress: Output) -> Iterator[dict[str, Any]]:
        delta = _delta(self._read(progress.text, progress.finish_reason))
        has_step = self._is_traced and progress.tokens
        if delta or progress.finish_reason or self._wants_logprobs or has_step:
            part = {"index": self._index, "delta": delta, "logprobs": self._logprobs(progress.logprobs)}
            yield {**part, **self._end(progress.finish_reason)}

    def _read(self, text: str, reason: FinishReason | None) -> list[Piece]:
        pieces = self._reader.read(text, is_last=reason is not None)
        self._has_calls = self._has_calls or any(isinstance(piece, CallPiece) for piece in pieces)
        return pieces

    def _end(self, reason: FinishReason | None) -> dict[str, Any]:
        """Why the choice ended. As in OpenAI's API, one that had to be a call of a named function ends with `stop`."""
        is_call = reason == "stop" and self._has_calls and not self._is_named
        return {"finish_reason": "tool_calls"} if is_call else end_of(reason)

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
