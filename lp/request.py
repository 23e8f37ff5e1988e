"""Requests, the decoding methods that they ask for, sequences and results.

Requests and outputs are sent to other processes as JSON. Knows no method in particular.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lp.decoder import MOST_FORCED, Decoder
from lp.drafting.account import WindowChoice
from lp.drafting.history import DraftHistory
from lp.grammar.settings import Grammar
from lp.sampling.contrast import Contrast
from lp.sampling.settings import Sampling
from lp.statistics import EngineCounts, Statistics
from lp.text.stopping import FinishReason, Stopping
from lp.trace import StepTrace
from lp.tree import Ahead

if TYPE_CHECKING:
    from lp.model.checkpoint_info import CheckpointInfo
    from lp.model.extensions import Extension


@dataclass
class DecodeLimits:
    """The most that a request may ask for.

    window: columns of a window. ngram: tokens of an n-gram. guesses: n-grams verified per step. pool_size: n-grams kept
    in all. pool_per_token: n-grams kept that begin with the same token. candidates: best tokens kept from an answer.
    rows: rows of a step; also bounds (W + G)(N - 1) + 1, the rows that a step of lookahead, Jacobi or prompt lookup can
    need. num_beams: beams of a search, or samples of decode=best_of. depth: drafts of a second model that follow one
    another.
    """

    window: int = 128
    ngram: int = 32
    guesses: int = 256
    pool_size: int = 1_000_000
    pool_per_token: int = 1024
    candidates: int = 64
    rows: int = 4096
    num_beams: int = 32
    depth: int = 64


# For each setting of a method, its lowest value and the name of the limit for its highest.
BOUNDS = {
    "window": (1, "window"),
    "max_window": (0, "window"),
    "ngram": (2, "ngram"),
    "guesses": (1, "guesses"),
    "pool_size": (1, "pool_size"),
    "pool_per_token": (1, "pool_per_token"),
    "candidates": (1, "candidates"),
    "depth": (1, "depth"),
    "max_rows": (1, "rows"),
    "rows": (0, "rows"),
    "num_beams": (1, "num_beams"),
    "num_samples": (1, "num_beams"),
    "num_return_sequences": (1, "num_beams"),
}


class RowBounds(NamedTuple):
    """How many rows a step of a method has, without a grammar.

    least: however little they are worth. most: that it can have. by_time: whether step times decide.
    """

    least: int = 1
    most: int = 1
    by_time: bool = False


class AnswerSpec(NamedTuple):
    """What a method needs of the answers besides what its decoder asks for.

    ahead: of the model's heads. contrast: what scores are made of; None if they are the model's logits. is_judged:
    whether log-probabilities are those of the second model.
    """

    ahead: Ahead | None = None
    contrast: Contrast | None = None
    is_judged: bool = False


class ModelTraits(NamedTuple):
    """What methods ask about a model. name: for messages. roles: of the second models. heads: (number, vocabulary) of
    the model's heads; None without.
    """

    name: str = ""
    roles: Collection[str] = ()
    heads: tuple[int, int] | None = None

    @staticmethod
    def of(checkpoint: CheckpointInfo, roles: Collection[str]) -> ModelTraits:
        """Those of a checkpoint. roles: of the models that are loaded with it."""
        heads = checkpoint.heads and checkpoint.heads[1]
        return ModelTraits(checkpoint.name, roles, heads and (heads.num_heads, heads.vocab_size))


@dataclass(frozen=True)
class DecodingContext:
    """What a decoder is made with besides the request.

    history: what the engine has learnt from earlier requests. generated: tokens that follow the prompt already.
    vocab_size: of the model. eos: tokens that end its texts. extensions: of the model, by role.
    """

    history: DraftHistory
    generated: Items[int] = ()
    vocab_size: int = 0
    eos: Collection[int] = ()
    extensions: Mapping[str, Extension] = field(default_factory=dict)


@dataclass
class DecodingMethod(ABC):
    """The settings of a decoding method, and all that an engine must know of the method.

    method: its name. tells_steps: whether its text grows step by step. needs_engine: whether it needs more than a
    model's answers. calls: what `BeamResult.num_calls` counts.
    """

    method: ClassVar[str]
    tells_steps: ClassVar[bool] = True
    needs_engine: ClassVar[bool] = False
    calls: ClassVar[str] = "hypotheses that the model continued"

    @property
    def takes_forced(self) -> bool:
        """Whether tokens that a grammar leaves no choice about become drafts."""
        return True

    @property
    def measures_host(self) -> bool:
        """Whether step times are measured for its own trees, rather than for those of the default method."""
        return False

    @property
    def lossy(self) -> str:
        """What makes the text another than the model's own, such as "typical"; empty if nothing does."""
        return ""

    @property
    def num_sequences(self) -> int:
        """How many sequences a request has."""
        return 1

    @property
    def label(self) -> str:
        """The method with its window, n-gram and guesses, as papers write it: lookahead (7, 5, 7)."""
        values = dataclasses.asdict(self)
        sizes = [str(values[key]) for key in ("window", "ngram", "guesses") if key in values]
        return f"{self.method} ({', '.join(sizes)})" if sizes else self.method

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the settings, with the method's name, for `lp.methods.registry.from_dict`."""
        return {"method": self.method, **dataclasses.asdict(self)}

    def check(self, limits: DecodeLimits) -> None:
        """Raises ValueError naming the first value that is out of range."""
        values = dataclasses.asdict(self)
        for key, (smallest, limit) in BOUNDS.items():
            largest = getattr(limits, limit)
            if type(values.get(key)) is int and not smallest <= values[key] <= largest:
                raise ValueError(
                    f"decode.{key}={values[key]} is out of range for {self.method}: "
                    f"it must be from {smallest} to {largest}"
                )
        self.check_values()
        bounds = self.row_bounds()
        if not bounds.by_time and bounds.most > limits.rows:
            raise ValueError(
                f"decode settings ask for up to {bounds.most} rows a step, more than the limit of {limits.rows}; "
                "use a smaller window, ngram or guesses"
            )

    def check_values(self) -> None:  # noqa: B027
        """Raises ValueError for values that contradict each other."""

    def check_model(self, model: ModelTraits) -> None:  # noqa: B027
        """Raises ValueError if the method needs what the model does not have."""

    def without_trees(self, plain: DecodingMethod) -> DecodingMethod | None:
        """What gives the same text on a model whose steps have one token each; None if nothing does.

        plain: autoregressive decoding.
        """
        return plain if self.tells_steps and not self.lossy else None

    def check_request(self, request: Request) -> None:  # noqa: B027
        """Raises ValueError for the first setting of a complete request that the method does not take."""

    @abstractmethod
    def row_bounds(self) -> RowBounds: ...

    def most_rows(self, has_grammar: bool = False) -> int:
        """The most rows that a step can have. has_grammar: whether the text must keep a grammar, which adds drafts."""
        return self.row_bounds().most + (MOST_FORCED if has_grammar and self.takes_forced else 0)

    def answer_spec(self, model: ModelTraits) -> AnswerSpec:
        """What is needed of the answers; by default nothing but targets and candidates."""
        return AnswerSpec()

    @abstractmethod
    def make_decoder(self, request: Request, context: DecodingContext) -> Decoder:
        """A decoder for one sequence. The request is complete, with a seed and a temperature."""

    def fan_out(self, request: Request) -> ParentRequest | None:
        """The sequences of a request that has several; None if it has one."""
        return None

    def windows_tried(self, history: DraftHistory, temperature: float) -> WindowChoice | None:
        """How the sizes of its window have done so far; None if its size is not a matter of choice."""
        return None

    def measure_host(self) -> tuple[float, float]:
        """Seconds that the host needs for a step, beyond those of autoregressive decoding, and for each row of it."""
        return 0.0, 0.0


class Pooling(StrEnum):
    """How an embedding is made of the hidden states of a prompt, which the output embedding reads otherwise.

    last: that of the last token, which has seen all others. mean: the mean of all tokens.
    """

    last = "last"
    mean = "mean"


@dataclass
class Request:
    """A prompt and how to continue it. Every default is filled in before a request reaches an engine.

    owner: requests of the same owner may share n-grams if their decode settings say so; None shares with nobody.
    priority: its weight above 0 where not all can take part in a step; 2 gets twice the turns of 1. grammar: what the
    generated text must be; None is anything. trace: whether every step tells what it did. pooling: how an embedding is
    made of the prompt's hidden states, which the request's end then has; None makes none.
    """

    id: str
    prompt: list[int]
    decode: DecodingMethod
    sampling: Sampling
    stopping: Stopping
    owner: str | None = None
    priority: float = 1.0
    grammar: Grammar | None = None
    trace: bool = False
    pooling: Pooling | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "decode": self.decode.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, Any], decode: DecodingMethod) -> Request:
        """The inverse of `to_dict`. decode: made of values["decode"] by `lp.methods.registry.from_dict`."""
        sampling = Sampling(**values["sampling"])
        sampling.logit_bias = {int(token): bias for token, bias in sampling.logit_bias.items()}  # JSON keys are strings
        return Request(
            values["id"],
            values["prompt"],
            decode,
            sampling,
            Stopping(**values["stopping"]),
            values["owner"],
            values["priority"],
            values["grammar"] and Grammar(**values["grammar"]),
            values["trace"],
            values["pooling"] and Pooling(values["pooling"]),
        )


class ParentRequest(ABC):
    """A request whose output is made of those of several sequences.

    request: the whole. requests: one for each sequence; all have the same prompt.
    """

    request: Request
    requests: list[Request]

    @abstractmethod
    def output(self, own: Output) -> Output:
        """What the whole request has to say once a sequence has said something."""

    @abstractmethod
    def aborted(self) -> Output:
        """The end of the whole request, which was aborted."""


@dataclass
class Sequence:
    """The state of a generation: caches, windows and pools can be rebuilt from its tokens and settings.

    tokens: prompt and output. prompt_length: how many of the tokens are the prompt. grammar: what the output must be.
    is_traced: whether somebody wants to know which rank computes what. ahead: what its steps ask of the model's heads.
    contrast: what scores are made of; None if they are the model's logits. is_judged: whether log-probabilities are
    those of the second model. num_hidden: numbers of the hidden state that is reported for each row; 0 is none.
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
    num_hidden: int = 0

    @property
    def needs_second(self) -> bool:
        """Whether a second model must run the rows as well."""
        return self.is_judged or (self.contrast is not None and self.contrast.of_second)

    def has_settings_of(self, other: Sequence) -> bool:
        """Whether its rows are answered as another's are. One that is kept for its keys and values has no settings."""
        return self._settings() == other._settings()

    def _settings(self) -> tuple[Any, ...]:
        answered = self.ahead, self.contrast, self.is_judged, self.num_hidden
        return self.prompt_length, self.sampling, self.grammar, *answered


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

    text may lag behind tokens while a character or a possible stop string is incomplete. stats: of the request, which
    count on while it runs. engine: what the engine has done since it last said so; None for all but one output of a
    step. prompt_logprobs: of the prompt's tokens from
    the second one on, with the first tokens or the end if they are asked for; else None. beams: the texts of a beam
    search or of decode=best_of, at its end. trace: what the step did, if the request asks for it; None with what is no
    step, such as the end of a cancelled request. embedding: of the prompt, with the end of a request that asks for it.
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
    embedding: list[float] | None = None

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
            "embedding": self.embedding,
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

    def extend(self, output: Output) -> None:
        self.text += output.text
        self.token_ids += output.tokens
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *output.logprobs]
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.trace is not None:
            self.trace.append(output.trace)
        self.finish_reason = output.finish_reason
        self.beams = output.beams
        self.stats = output.stats
