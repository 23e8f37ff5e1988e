"""Requests, sequences and what comes out of them. Plain data; a request crosses ranks as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from lp import methods
from lp.methods import DecodeSettings
from lp.sampling.settings import Sampling
from lp.statistics import Statistics
from lp.text.stopping import FinishReason, Stopping


@dataclass
class Request:
    """One prompt and how to continue it. Made complete (no default left open) before it reaches an engine.

    owner: whose requests may share n-grams with this one, if its decode settings say so; None is nobody's.
    """

    id: str
    prompt: list[int]
    decode: DecodeSettings
    sampling: Sampling
    stopping: Stopping
    owner: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "decode": methods.to_dict(self.decode)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Request:
        sampling = Sampling(**values["sampling"])
        sampling.logit_bias = {int(token): bias for token, bias in sampling.logit_bias.items()}  # JSON keys are strings
        return Request(
            values["id"],
            values["prompt"],
            methods.from_dict(values["decode"]),
            sampling,
            Stopping(**values["stopping"]),
            values["owner"],
        )


@dataclass
class Sequence:
    """Token ids: the whole state of a generation. Caches, windows and pools can be rebuilt from them and the seed.

    prompt_length: how many of the tokens are the prompt.
    """

    id: str
    tokens: list[int]
    prompt_length: int
    sampling: Sampling


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability under the unprocessed distribution, and the likeliest alternatives."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Progress:
    """What one step added to one request.

    text may lag behind tokens while a character or a possible stop string is incomplete.
    """

    request_id: str
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None
    stats: Statistics

    def to_dict(self) -> dict[str, Any]:
        """JSON values. What is not told of the statistics are the moments at which they began."""
        return {
            "request_id": self.request_id,
            "tokens": self.tokens,
            "text": self.text,
            "logprobs": self.logprobs and [[entry.token, entry.logprob, entry.top] for entry in self.logprobs],
            "finish_reason": self.finish_reason,
            "stats": self.stats.counts(),
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        logprobs = values["logprobs"] and [
            TokenLogprob(token, logprob, [(other, value) for other, value in top])
            for token, logprob, top in values["logprobs"]
        ]
        return Progress(**{**values, "logprobs": logprobs, "stats": Statistics.of(values["stats"])})


@dataclass
class Completion:
    """A finished generation."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stats: Statistics = field(default_factory=Statistics)

    def extend(self, progress: Progress) -> None:
        self.text += progress.text
        self.token_ids += progress.tokens
        if progress.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *progress.logprobs]
        self.finish_reason = progress.finish_reason
        self.stats = progress.stats
