"""Writes replies in OpenAI's formats, whole or as the chunks of a stream. Knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from launch.server.openai.conversion import Prepared
from launch.server.openai.tokens import TokenNames
from lp import methods
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import Completion, Progress, TokenLogprob
from lp.statistics import Statistics
from lp.text.detokenizer import Detokenizer

# OpenAI's API gives this value for impossible tokens, because JSON has no infinity.
LOWEST_LOGPROB = -9999.0


def usage(stats: Statistics) -> dict[str, Any]:
    accepted, proposed = stats.accepted.total(), stats.proposed.total()
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.tokens,
        "total_tokens": stats.prompt_tokens + stats.tokens,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


class Reply:
    """The reply to one request. Its chunks must be made in the order of the stream."""

    kind: str
    chunk_kind: str

    def __init__(self, prepared: Prepared, model_name: str, names: TokenNames):
        self.prepared = prepared
        self.names = names
        self._head = {"id": prepared.request.id, "created": int(time.time()), "model": model_name}

    def whole(self, completion: Completion) -> dict[str, Any]:
        choice = self._choice(completion.text, completion.logprobs, completion.token_ids)
        choice["finish_reason"] = completion.finish_reason
        return {**self._head, "object": self.kind, "choices": [choice], **self._figures(completion.stats)}

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yields the chunks before the first token."""
        raise NotImplementedError

    def chunks(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Yields the chunks for what a step added.

        A step whose text is held back yields none, unless log-probabilities are wanted.
        """
        if progress.text or progress.finish_reason or self.prepared.wants_logprobs:
            choice = self._part(progress.text, progress.logprobs, progress.tokens)
            chunk = self._chunk({**choice, "finish_reason": progress.finish_reason})
            yield {**chunk, **self._figures(progress.stats)} if self.prepared.wants_usage_so_far else chunk
        if progress.finish_reason and self.prepared.wants_usage:
            yield {**self._head, "object": self.chunk_kind, "choices": [], **self._figures(progress.stats)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        return {**chunk, "usage": None} if self.prepared.wants_usage else chunk

    def _choice(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        raise NotImplementedError

    def _figures(self, stats: Statistics) -> dict[str, Any]:
        return {"usage": usage(stats), "lookahead": self._lookahead(stats)}

    def _lookahead(self, stats: Statistics) -> dict[str, Any]:
        """Returns this project's extension: how the request was decoded, and what that cost."""
        request = self.prepared.request
        return {"decode": methods.to_dict(request.decode), "seed": request.sampling.seed, **stats.to_dict()}


class CompletionReply(Reply):
    """The reply of /v1/completions."""

    kind = chunk_kind = "text_completion"

    def __init__(self, prepared: Prepared, model_name: str, names: TokenNames, checkpoint: CheckpointInfo):
        super().__init__(prepared, model_name, names)
        self._detokenizer = Detokenizer(checkpoint.tokenizer, prepared.request.prompt)
        self._offset = 0  # number of characters of the tokens so far

    def opening(self) -> Iterator[dict[str, Any]]:
        if self.prepared.echo:
            yield self._chunk(self._part(self.prepared.echo, None, []) | {"finish_reason": None})

    def _choice(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        return self._part(self.prepared.echo + text, logprobs, tokens)

    def _part(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": self._logprobs(logprobs or [], tokens)}

    def _logprobs(self, logprobs: list[TokenLogprob], tokens: list[int]) -> dict[str, Any] | None:
        if not self.prepared.wants_logprobs:
            return None
        return {
            "tokens": [self.names.name(token) for token in tokens],
            "token_logprobs": [_finite(found.logprob) for found in logprobs],
            "top_logprobs": [self._top(found) for found in logprobs],
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """Returns the log-probabilities of the alternatives and, if it is not among them, of the token itself."""
        likeliest = {self.names.name(token): _finite(logprob) for token, logprob in reversed(found.top)}
        best_first = dict(reversed(likeliest.items()))
        return {**best_first, self.names.name(found.token): _finite(found.logprob)}

    def _next_offset(self, token: int) -> int:
        """Returns the character of the text at which the token begins, and moves past the token."""
        offset = self._offset
        self._offset += len(self._detokenizer.push(token))
        return offset


class ChatReply(Reply):
    """The reply of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> Iterator[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        yield self._chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})

    def _choice(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": self._logprobs(logprobs or [])}

    def _part(self, text: str, logprobs: list[TokenLogprob] | None, tokens: list[int]) -> dict[str, Any]:
        delta = {"content": text} if text else {}
        return {"index": 0, "delta": delta, "logprobs": self._logprobs(logprobs or [])}

    def _logprobs(self, logprobs: list[TokenLogprob]) -> dict[str, Any] | None:
        if not self.prepared.wants_logprobs:
            return None
        content = [
            {**self._named(found.token, found.logprob), "top_logprobs": [self._named(*other) for other in found.top]}
            for found in logprobs
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.names.name(token), "bytes": [*self.names.bytes_of(token)], "logprob": _finite(logprob)}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
