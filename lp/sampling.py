"""From logits to target tokens: transformers' processors, then the arg max of score plus position-keyed noise.

Greedy decoding is temperature 0 of the same path. Knows nothing of windows, drafts or ranks.

    R rows of the tree, V vocabulary, L tokens of a path, K alternatives
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lp.noise import NoiseSource
from lp.selection import best_tokens
from lp.tree import TokenTree
from lp.verification import NOT_A_TOKEN, Answers

if TYPE_CHECKING:
    from transformers import GenerationConfig

LARGEST_SEED = 2**63 - 1


@dataclass
class Sampling:
    """How the next token is chosen. None means: as the checkpoint's generation_config.json says, else off.

    temperature: 0 is greedy. top_k: 0 is off. top_p, min_p: shares of probability, 1 and 0 are off.
    repetition_penalty: multiplicative, over prompt and output, 1 is off. presence_penalty, frequency_penalty: additive,
    over the output alone (OpenAI's definition). no_repeat_ngram: size of n-grams that may not repeat, 0 is off.
    logit_bias: token id to bias. min_new_tokens: no end of sequence before. seed: None draws one.
    logprobs: number of alternatives reported for each token; None reports nothing.
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

    def with_defaults(self, generation: GenerationConfig) -> Sampling:
        """Every None but `seed` and `logprobs` filled in from a checkpoint's generation_config.json."""
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

    def check(self, vocab_size: int) -> None:
        """Raises ValueError naming the first setting that is out of range."""
        ranges: dict[str, tuple[float, float]] = {
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
            "logprobs": (0, min(20, vocab_size)),
        }
        for name, (smallest, largest) in ranges.items():
            value = getattr(self, name)
            if value is not None and not smallest <= value <= largest:
                raise ValueError(f"{name}={value} is out of range: it must be from {smallest} to {largest}")
        if self.temperature and self.temperature < 1e-5:
            raise ValueError(f"temperature={self.temperature} would overflow; use temperature=0 for greedy decoding")
        if self.top_p == 0.0:
            raise ValueError("top_p=0 leaves no token to choose from; use temperature=0 for greedy decoding")
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                raise ValueError(f"logit_bias names token {token}, but the vocabulary has ids 0 to {vocab_size - 1}")
            if not -100.0 <= bias <= 100.0:
                raise ValueError(f"logit_bias of token {token} is {bias}; it must be from -100 to 100")


class OutputPenaltyLogitsProcessor(LogitsProcessor):
    """Presence and frequency penalties over the generated tokens, as OpenAI's API defines them."""

    def __init__(self, prompt_length: int, presence: float, frequency: float):
        self.prompt_length = prompt_length
        self.presence = presence
        self.frequency = frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        generated = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, generated, torch.ones_like(generated, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def context_processors(sampling: Sampling, prompt_length: int, eos: Sequence[int], device: str) -> LogitsProcessorList:
    """Those that look at the path before a token, in the order of transformers' `generate`."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty is not None and sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
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
    """Those that look at the scores alone, in the order of transformers' `generate`."""
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


class Sampler:
    """Answers for the rows of one sequence's trees."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_length: int,
        eos: Sequence[int],
        vocab_size: int,
        device: str,
        num_candidates: int = 0,
    ):
        """sampling: with no None left but `logprobs`. num_candidates: K, best tokens to give for each row."""
        assert sampling.seed is not None and sampling.temperature is not None
        self.num_candidates = min(num_candidates, vocab_size)
        self.logprobs = sampling.logprobs
        self.bias = LogitsProcessorList()
        if sampling.logit_bias:
            self.bias.append(SequenceBiasLogitsProcessor([[[t], float(b)] for t, b in sampling.logit_bias.items()]))
        self.context = context_processors(sampling, prompt_length, eos, device)
        self.warpers = warpers(sampling)
        self.noise = NoiseSource(sampling.seed, vocab_size, device) if sampling.temperature > 0 else None

    def answers(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Answers:
        """logits_RV: float32 logits of the tree's rows. tokens: the sequence, whose last token is the tree's root."""
        scores_RV = self.scores(logits_RV, tree, tokens)
        if self.noise:
            scores_RV = scores_RV.clone() if scores_RV is logits_RV else scores_RV
            self.noise.add_to(scores_RV, tree.depths + len(tokens), tree.quiet)
        best_RK, are_numbers_R = best_tokens(scores_RV, max(1, self.num_candidates))
        columns = [torch.where(are_numbers_R[:, None], best_RK, NOT_A_TOKEN)]
        if self.logprobs is not None:
            logprobs_RV = logits_RV.log_softmax(dim=-1)
            top = logprobs_RV.topk(self.logprobs, dim=-1)
            columns += [_bits(logprobs_RV.gather(1, best_RK[:, :1])), top.indices, _bits(top.values)]
        packed = torch.cat(columns, dim=1).to(torch.int32).cpu().numpy()
        return Answers.unpack(packed, self.num_candidates)

    def scores(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Tensor:
        """[R, V] after all processors: what a token is drawn from, as log-probabilities up to a constant of the row."""
        no_context = cast(LongTensor, torch.empty(len(tree), 0, dtype=torch.int64, device=logits_RV.device))
        scores_RV = self._in_context(self.bias(no_context, logits_RV), tree, tokens)
        return self.warpers(no_context, scores_RV)

    def _in_context(self, scores_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Tensor:
        """Applies the processors that look at each row's own path; rows of one depth share a call."""
        if not self.context:
            return scores_RV
        order = np.argsort(tree.depths, kind="stable")
        first = len(tokens)
        packed = np.zeros((len(tree), first + 1 + int(tree.depths.max())), dtype=np.int64)  # each row's number and path
        packed[:, 0] = order
        packed[:, 1:first] = tokens[:-1]
        for path, row in zip(packed, order, strict=True):
            path[first : first + 1 + tree.depths[row]] = tree.tokens[tree.path(row)]
        on_device = torch.from_numpy(packed).to(scores_RV.device)
        scores_RV = scores_RV.clone()
        depths, starts = np.unique(tree.depths[order], return_index=True)
        for depth, start, end in zip(depths, starts, [*starts[1:], len(tree)], strict=True):
            rows = on_device[start:end, 0]
            paths_RL = cast(LongTensor, on_device[start:end, 1 : first + 1 + int(depth)])
            scores_RV[rows] = self.context(paths_RL, cast(FloatTensor, scores_RV[rows]))
        return scores_RV


def _bits(values: Tensor) -> Tensor:
    """Floats as the integers that have their bits."""
    return values.float().contiguous().view(torch.int32)
