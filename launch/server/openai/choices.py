"""Writes the choices of replies in OpenAI's formats: one text each, whole or part by part. Knows nothing of usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from launch.server.openai.structured import end_of
from launch.server.openai.tokens import TokenNames
from lp.request import Completion, Progress, TokenLogprob
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason

# OpenAI's API gives this value for impossible tokens, because JSON has no infinity.
LOWEST_LOGPROB = -9999.0


class Choice(Protocol):
    """One choice of a reply. Its parts must be made in the order of the stream."""

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The choice with all of its text."""
        ...

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yields the parts before the first token."""
        ...

    def parts(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Yields the parts for what a step added; none while its text is held back."""
        ...


class CompletionChoice:
    """A choice of /v1/completions. echo: text before the generated text."""

    def __init__(self, index: int, echo: str, wants_logprobs: bool, names: TokenNames, detokenizer: Detokenizer):
        self._index = index
        self._echo = echo
        self._wants_logprobs = wants_logprobs
        self._names = names
        self._detokenizer = detokenizer
        self._offset = 0  # number of characters of the tokens so far

    def whole(self, completion: Completion) -> dict[str, Any]:
        logprobs = self._logprobs(completion.logprobs, completion.token_ids)
        return self._part(self._echo + completion.text, logprobs, completion.finish_reason)

    def opening(self) -> Iterator[dict[str, Any]]:
        if self._echo:
            yield self._part(self._echo, self._logprobs([], []), None)

    def parts(self, progress: Progress) -> Iterator[dict[str, Any]]:
        if progress.text or progress.finish_reason or self._wants_logprobs:
            yield self._part(progress.text, self._logprobs(progress.logprobs, progress.tokens), progress.finish_reason)

    def _part(self, text: str, logprobs: dict[str, Any] | None, reason: FinishReason | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, **end_of(reason)}

    def _logprobs(self, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        return {
            "tokens": [self._names.name(token) for token in tokens],
            "token_logprobs": [finite(found.logprob) for found in logprobs or []],
            "top_logprobs": [self._top(found) for found in logprobs or []],
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """Returns the log-probabilities of the alternatives and, if it is not among them, of the token itself."""
        likeliest = {self._names.name(token): finite(logprob) for token, logprob in reversed(found.top)}
        best_first = dict(reversed(likeliest.items()))
        return {**best_first, self._names.name(found.token): finite(found.logprob)}

    def _next_offset(self, token: int) -> int:
        """Returns the character of the text at which the token begins, and moves past the token."""
        offset = self._offset
        self._offset += len(self._detokenizer.push(token))
        return offset


class ChatChoice:
    """A choice of /v1/chat/completions."""

    def __init__(self, index: int, wants_logprobs: bool, names: TokenNames):
        self._index = index
        self._wants_logprobs = wants_logprobs
        self._names = names

    def whole(self, completion: Completion) -> dict[str, Any]:
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        choice = {"index": self._index, "message": message, "logprobs": self._logprobs(completion.logprobs)}
        return {**choice, **end_of(completion.finish_reason)}

    def opening(self) -> Iterator[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        yield {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def parts(self, progress: Progress) -> Iterator[dict[str, Any]]:
        if progress.text or progress.finish_reason or self._wants_logprobs:
            delta = {"content": progress.text} if progress.text else {}
            part = {"index": self._index, "delta": delta, "logprobs": self._logprobs(progress.logprobs)}
            yield {**part, **end_of(progress.finish_reason)}

    def _logprobs(self, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        content = [
            {**self._named(found.token, found.logprob), "top_logprobs": [self._named(*other) for other in found.top]}
            for found in logprobs or []
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._names.name(token), "bytes": [*self._names.bytes_of(token)], "logprob": finite(logprob)}


def finite(logprob: float) -> float:
    """The log-probability as JSON can write it."""
    return max(logprob, LOWEST_LOGPROB)
