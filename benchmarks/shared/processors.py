"""transformers' own logits processors for sampling settings, to compare with what lp/sampling does in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lp.sampling.settings import Sampling


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


def context_processors(sampling: Sampling, prompt_length: int, eos: Sequence[int]) -> LogitsProcessorList:
    """The processors that look at the path before a token, in the order in which they are applied."""
    processors = LogitsProcessorList()
    if sampling.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[t], float(b)] for t, b in sampling.logit_bias.items()]))
    if sampling.repetition_penalty and sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(
            OutputPenaltyLogitsProcessor(prompt_length, sampling.presence_penalty or 0, sampling.frequency_penalty or 0)
        )
    if sampling.no_repeat_ngram:
        processors.append(NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram))
    if sampling.bad_words:
        processors.append(NoBadWordsLogitsProcessor(sampling.bad_words))
    if allowed := sampling.allowed_token_ids:
        processors.append(PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1))
    if sampling.min_new_tokens and eos:
        processors.append(MinNewTokensLengthLogitsProcessor(prompt_length, sampling.min_new_tokens, list(eos)))
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
