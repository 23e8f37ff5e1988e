"""The sampling settings, with their defaults and limits. Knows nothing of how they are applied."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import GenerationConfig

LARGEST_SEED = 2**63 - 1
# Of bad_words.
MOST_WORDS = 1000


@dataclass
class Sampling:
    """How the next token is chosen. None takes the value of the checkpoint's generation_config.json, else off.

    temperature: 0 is greedy. top_k: 0 is off. top_p: share of probability, 1 is off. min_p: probability relative to the
    best token's, 0 is off. repetition_penalty: factor for tokens of prompt and output, 1 is off. presence_penalty,
    frequency_penalty: subtracted for tokens of the output alone (OpenAI's definition), 0 is off. no_repeat_ngram: size
    of n-grams that may not repeat, 0 is off. logit_bias: from token id to the bias that is added. min_new_tokens:
    number of tokens before which no end of sequence may come. bad_words: token ids of words that never come, after the
    prompt's tokens as well. allowed_token_ids: the only tokens that may come; None is all. seed: None draws one.
    logprobs: number of alternatives reported for each token; None reports nothing. prompt_logprobs: the same for the
    tokens of the prompt.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_new_tokens: int | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    allowed_token_ids: list[int] | None = None

    @staticmethod
    def greedy() -> Sampling:
        """The model's best token, with nothing that changes its scores."""
        return Sampling(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, min_new_tokens=0, seed=0)

    def with_defaults(self, generation: GenerationConfig) -> Sampling:
        """Fills in every None but `seed` and those of log-probabilities from a checkpoint's generation_config.json."""
        samples = bool(generation.do_sample)
        temperature = generation.temperature if generation.temperature is not None else 1.0
        defaults: dict[str, Any] = {
            "temperature": temperature if samples else 0.0,
            "top_k": (generation.top_k if samples else None) or 0,
            "top_p": (generation.top_p if samples else None) or 1.0,
            "min_p": (generation.min_p if samples else None) or 0.0,
            "repetition_penalty": generation.repetition_penalty or 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "no_repeat_ngram": generation.no_repeat_ngram_size or 0,
            "min_new_tokens": generation.min_new_tokens or 0,
        }
        return dataclasses.replace(self, **{k: v for k, v in defaults.items() if getattr(self, k) is None})

    def another(self, number: int) -> Sampling:
        """The same settings with the next seed but so many: those of choice `number` of several texts."""
        assert self.seed is not None
        return dataclasses.replace(self, seed=(self.seed + number) % (LARGEST_SEED + 1))

    def changed(self, settings: Mapping[str, Any]) -> Sampling:
        """These settings with those of the mapping in their place. Raises ValueError for a name that is no setting."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in names:
                raise ValueError(
                    f"{name!r} is no sampling setting; they are {', '.join(names)}; where a text ends is set by "
                    "stopping=Stopping(...)"
                )
        return dataclasses.replace(self, **settings)

    def check(self, vocab_size: int | None = None) -> None:
        """Raises ValueError naming the first setting that is out of range. vocab_size: None is not known yet."""
        ranges: dict[str, tuple[float, float | None]] = {
            "temperature": (0.0, 100.0),
            "top_k": (0, vocab_size),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
            "no_repeat_ngram": (0, 1_000_000),
            "min_new_tokens": (0, 10_000_000),
            "seed": (0, LARGEST_SEED),
            "logprobs": (0, min(20, vocab_size or 20)),
            "prompt_logprobs": (0, min(20, vocab_size or 20)),
        }
        for name, (smallest, largest) in ranges.items():
            value = getattr(self, name)
            if not _is_number(value):
                raise ValueError(f"{name}={value!r} must be a number")
            if value is not None and not smallest <= value <= (math.inf if largest is None else largest):
                allowed = f"at least {smallest}" if largest is None else f"from {smallest} to {largest}"
                raise ValueError(f"{name}={value} is out of range: it must be {allowed}")
        if self.temperature and self.temperature < 1e-5:
            raise ValueError(f"temperature={self.temperature} would overflow; use temperature=0 for greedy decoding")
        if self.top_p == 0.0:
            raise ValueError("top_p=0 leaves no token to choose from; use temperature=0 for greedy decoding")
        for token, bias in self.logit_bias.items():
            if vocab_size is not None and not 0 <= token < vocab_size:
                raise ValueError(f"logit_bias names token {token}, but the vocabulary has ids 0 to {vocab_size - 1}")
            if not -100.0 <= bias <= 100.0:
                raise ValueError(f"logit_bias of token {token} is {bias}; it must be from -100 to 100")
        if self.allowed_token_ids == []:
            raise ValueError(
                "allowed_token_ids is empty, so that nothing could be said; leave it out to allow all tokens"
            )
        if [] in self.bad_words:
            raise ValueError("bad_words holds a word without tokens; leave it out")
        if len(self.bad_words) > MOST_WORDS:
            raise ValueError(f"bad_words holds {len(self.bad_words)} words; the limit is {MOST_WORDS}")
        named = [("allowed_token_ids", self.allowed_token_ids or []), *(("bad_words", word) for word in self.bad_words)]
        for name, tokens in named:
            for token in tokens:
                if vocab_size is not None and not 0 <= token < vocab_size:
                    raise ValueError(f"{name} has token {token}, but the vocabulary has ids 0 to {vocab_size - 1}")


def _is_number(value: object) -> bool:
    """Whether a setting is a number or left open."""
    return value is None or isinstance(value, Real)
