"""Requests, sequences and results, as plain data. Requests and progress are sent to other processes as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lp import methods
from lp.grammar.settings import Grammar
from lp.methods import DecodeSettings
from lp.sampling.contrast import Contrast
from lp.sampling.settings import Sampling
from lp.statistics import EngineCounts, Statistics
from lp.text.stopping import FinishReason, Stopping
from lp.trace.step import StepTrace
from lp.tree import Ahead


@dataclass
class Request:
    """A prompt and how to continue it. Every default is filled in before a request reaches an engine.

    owner: requests of the same owner may share n-grams if their decode settings say so; None shares with nobody.
    priority: its weight above 0 where not all can take part in a step; 2 gets twice the turns of 1. grammar: what the
    generated text must be; None is anything. trace: whether every step tells what it did.
    """

    id: str
    prompt: list[int]
    decode: DecodeSettings
    sampling: Sampling
    stopping: Stopping
    owner: str | None = None
    priority: float = 1.0
    grammar: Grammar | None = None
    trace: bool = False

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
            values["priority"],
            values["grammar"] and Grammar(**values["grammar"]),
            values["trace"],
        )


@dataclass
class Sequence:
    """The state of a generation: caches, windows and pools can be rebuilt from its tokens and settings.

    tokens: prompt and output. prompt_length: how many of the tokens are the prompt. grammar: what the output must be.
    is_traced: whether somebody wants to know which rank computes what. ahead: what its steps ask of the model's heads.
    contrast: what scores are made of; None if they are the model's logits. is_judged: whether log-probabilities are
    those of the second model.
    """

    id: str
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    grammar: Grammar | None = None
    is_traced: bool = False
    ahead: Ahead | None = None
    contrast: Contrast | None = None
    is_judged: bool = False

    @property
    def needs_second(self) -> bool:
        """Whether a second model must run the rows as well."""
        return self.is_judged or (self.contrast is not None and self.contrast.of_second)

    def has_settings_of(self, other: Sequence) -> bool:
        """Whether its rows are answered as another's are. One that is kept for its keys and values has no settings."""
        return self._settings() == other._settings()

    def _settings(self) -> tuple[Any, ...]:
        return self.prompt_length, self.sampling, self.grammar, self.ahead, self.contrast, self.is_judged


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability in the model's unprocessed distribution, and the likeliest alternatives.

    top: pairs of a token and its log-probability.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def mean_logprob(logprobs: list[TokenLogprob] | None) -> float:
    """Of a text's tokens; that of a text without tokens is the lowest."""
    found = [one.logprob for one in logprobs or []]
    return sum(found) / len(found) if found else float("-inf")


class ScoredText(NamedTuple):
    """A text with its score: the mean log-probability of a sample's tokens, or a Hypothesis's of a beam search."""

    text: str
    token_ids: list[int]
    score: float


class BeamResult(NamedTuple):
    """What a beam search has found, or the best of some samples.

    texts: best first. num_calls: hypotheses that the model was asked to continue, or the steps of all samples.
    """

    texts: list[ScoredText]
    num_calls: int

    def shown(self) -> dict[str, Any]:
        """JSON values for a user."""
        return {"calls": self.num_calls, "texts": [text._asdict() for text in self.texts]}

    @staticmethod
    def from_list(values: list[Any]) -> BeamResult:
        texts, num_calls = values
        return BeamResult([ScoredText(*text) for text in texts], num_calls)


@dataclass(frozen=True)
class Output:
    """What one step added to one request.

    text may lag behind tokens while a character or a possible stop string is incomplete. engine: what the engine has
    done since it last said so; None for all but one progress of a step. prompt_logprobs: of the prompt's tokens from
    the second one on, with the first tokens or the end if they are asked for; else None. beams: the texts of a beam
    search or of decode=best_of, at its end. trace: what the step did, if the request asks for it; None with what is no
    step, such as the end of a cancelled request.
    """

    request_id: str
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None
    stats: Statistics
    engine: EngineCounts | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    beams: BeamResult | None = None
    trace: StepTrace | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values for `from_dict`. The statistics' points in time are left out, as only this process knows them."""
        return {
            "request_id": self.request_id,
            "tokens": self.tokens,
            "text": self.text,
            "logprobs": _plain(self.logprobs),
            "finish_reason": self.finish_reason,
            "stats": self.stats.counts(),
            "engine": self.engine and self.engine.to_list(),
            "prompt_logprobs": _plain(self.prompt_logprobs),
            "beams": self.beams,
            "trace": self.trace and self.trace.to_dict(),
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Output:
        read = {name: _logprobs_of(values[name]) for name in ("logprobs", "prompt_logprobs")}
        stats = Statistics.from_counts(values["stats"])
        engine = values["engine"] and EngineCounts(*values["engine"])
        beams = values["beams"] and BeamResult.from_list(values["beams"])
        trace = values["trace"] and StepTrace.from_dict(values["trace"])
        return Output(**{**values, **read, "stats": stats, "engine": engine, "beams": beams, "trace": trace})


def _plain(logprobs: list[TokenLogprob] | None) -> list[list[Any]] | None:
    """JSON values of log-probabilities."""
    return None if logprobs is None else [[entry.token, entry.logprob, entry.top] for entry in logprobs]


def _logprobs_of(values: list[list[Any]] | None) -> list[TokenLogprob] | None:
    """The inverse of `_plain`."""
    if values is None:
        return None
    return [TokenLogprob(token, logprob, [(other, value) for other, value in top]) for token, logprob, top in values]


@dataclass
class Completion:
    """A finished generation. trace: of each step; empty if the request did not ask for it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stats: Statistics = field(default_factory=Statistics)
    beams: BeamResult | None = None
    trace: list[StepTrace] = field(default_factory=list)

    def extend(self, progress: Output) -> None:
        self.text += progress.text
        self.token_ids += progress.tokens
        if progress.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *progress.logprobs]
        if progress.prompt_logprobs is not None:
            self.prompt_logprobs = progress.prompt_logprobs
        if progress.trace is not None:
            self.trace.append(progress.trace)
        self.finish_reason = progress.finish_reason
        self.beams = progress.beams
        self.stats = progress.stats
