"""Builds the logits processors for sampling settings: some look at a row's path, some at its scores alone.

Knows nothing of trees: each row comes with its own path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lp.sampling.settings import Sampling


class RepetitionPenalty(LogitsProcessor):
    """transformers' RepetitionPenaltyLogitsProcessor, but in place: a copy of all scores would cost far more."""

    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        seen = scores.gather(1, input_ids)
        return scores.scatter_(1, input_ids, torch.where(seen < 0, seen * self.penalty, seen / self.penalty))


class OutputPenaltyLogitsProcessor(LogitsProcessor):
    """Presence and frequency penalties, which count generated tokens only, as OpenAI's API defines them."""

    def __init__(self, prompt_length: int, presence: float, frequency: float):
        self.prompt_length = prompt_length
        self.presence = presence
        self.frequency = frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        generated = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def context_processors(sampling: Sampling, prompt_length: int, eos: Sequence[int], device: str) -> LogitsProcessorList:
    """The processors that look at the path before a token, in the order of transformers' `generate`.

    The repetition penalty, which `generate` applies before all of them, is not among them.
    """
    processors = LogitsProcessorList()
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(
            OutputPenaltyLogitsProcessor(prompt_length, sampling.presence_penalty or 0, sampling.frequency_penalty or 0)
        )
    if sampling.no_repeat_ngram:
        processors.append(NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram))
    if sampling.min_new_tokens and eos:
        processors.append(
            MinNewTokensLengthLogitsProcessor(prompt_length, sampling.min_new_tokens, list(eos), device=device)
        )
    return processors


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """The processors that look at the scores alone, in the order of transformers' `generate`; none if greedy."""
    processors = LogitsProcessorList()
    if not sampling.temperature:
        return processors
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(float(sampling.top_p)))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(float(sampling.min_p)))
    return processors


def biases(sampling: Sampling) -> LogitsProcessorList:
    """The processors that add the same values to every row."""
    processors = LogitsProcessorList()
    if sampling.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[t], float(b)] for t, b in sampling.logit_bias.items()]))
    return processors
