"""Writes replies of one or more choices in OpenAI's formats, whole or as the chunks of a stream.

Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from launch.server.errors import ApiError
from launch.server.openai.choices import ChatChoice, Choice, CompletionChoice, prompt_logprobs
from launch.server.openai.conversion import Prepared
from launch.server.openai.tokens import TokenNames
from lp import methods
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import Completion, Output, Request, mean_logprob
from lp.statistics import Statistics

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
        self.names = names
        self._head = {"id": prepared.id, "created": int(time.time()), "model": model_name}
        if lossy := methods.lossy_name(prepared.requests[0].decode):  # all of a body's requests have the same method
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

    def chunks(self, progress: Output) -> Iterator[dict[str, Any]]:
        """Yields the chunks for what a step added to one of the requests.

        A step whose text is held back yields none, unless log-probabilities or its trace are wanted. The trace comes
        with the step's last chunk.
        """
        self._spent[progress.request_id] = progress.stats
        trace = {"lookahead": progress.trace.within(MOST_TRACE_BYTES).to_dict()} if progress.trace else {}
        figures = self._figures(self._spent) if self.prepared.wants_usage_so_far else {}
        parts = [*self._choices[progress.request_id].parts(progress)]
        for number, part in enumerate(parts, 1):
            yield {**self._chunk(part), **figures, **(trace if number == len(parts) else {})}
        if progress.finish_reason:
            self._open.discard(progress.request_id)
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
    return {"decode": methods.to_dict(request.decode), "seed": request.sampling.seed, **stats.to_dict()}


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
