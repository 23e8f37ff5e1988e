"""What a second model proposes, from its logits: the likeliest tokens, or those that the noise of a position draws.

N nodes of a round, R nodes with those above them, V vocabulary, W candidates
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.grammar.state import apply_masks
from lp.methods.draft_model.calibration import WIDTH
from lp.methods.draft_model.growth import Candidates, Growth, tree_of
from lp.model.causal import CausalModel
from lp.sampling.batch import Asked
from lp.sampling.choosers import can_fuse, warp
from lp.sampling.couplings import DRAFT_STREAM
from lp.sampling.drawn import noisy
from lp.sampling.noise import gumbel_at, stream_seed
from lp.sampling.penalties import change
from lp.sampling.rows import Rows
from lp.sampling.sampler import Sampler
from lp.sampling.settings import Sampling


class Chosen(NamedTuple):
    """The candidates of some nodes on the device.

    scores: float32 [N, W], logarithms of their priors. tokens: int64 [N, W]. distributions: float32 [N, V] from which
    they were drawn; None if they were not.
    """

    scores: Tensor
    tokens: Tensor
    distributions: Tensor | None


class CandidateChooser:
    """Chooses candidates for one sequence, with the request's own temperature, penalties and noise."""

    def __init__(self, model: CausalModel, sampling: Sampling, prompt_length: int, vocab_size: int, is_drawn: bool):
        """vocab_size: of the model that the drafts are for. is_drawn: see DraftText."""
        self._vocab_size = min(model.vocab_size, vocab_size)
        biases = {token: bias for token, bias in sampling.logit_bias.items() if token < self._vocab_size}
        allowed, words = sampling.allowed_token_ids, sampling.bad_words
        settings = replace(
            sampling, logit_bias=biases, logprobs=None, prompt_logprobs=None,
            bad_words=[word for word in words if max(word) < self._vocab_size],
            allowed_token_ids=allowed and ([token for token in allowed if token < self._vocab_size] or None),
        )  # fmt: skip
        self._sampler = Sampler(settings, prompt_length, model.eos, self._vocab_size, str(model.device))
        self._is_drawn, self._seed = is_drawn, sampling.seed or 0

    def choose(self, logits_NV: Tensor, tokens: Sequence[int], growth: Growth, nodes: Sequence[int]) -> Chosen:
        """The candidates of some nodes. tokens: the sequence."""
        numbers = sorted({number for node in nodes for number in growth.lineage(node)})
        places = np.array([numbers.index(node) for node in nodes])
        asked = self._sampler.ask(tree_of(growth, numbers), tokens)
        logits_NV = self._penalize(logits_NV[:, : self._vocab_size].contiguous(), asked, places)
        rows = Rows(logits_NV, asked.choices[places], asked.dropped[places], asked.positions[places])
        is_sampled = self._sampler.is_sampled
        scores = warp(rows) if is_sampled else logits_NV
        if self._is_drawn:
            return self._drawn(scores, rows.positions)
        scores = scores.log_softmax(dim=1)
        if is_sampled:
            scores = noisy(scores, rows)
        best = scores.topk(min(WIDTH, self._vocab_size), dim=1)
        return Chosen(best.values.log_softmax(dim=1) if is_sampled else best.values, best.indices, None)

    def _penalize(self, logits_NV: Tensor, asked: Asked, places: np.ndarray) -> Tensor:
        """The logits after penalties, biases and masks, which look at all nodes above."""
        if not asked.changes:
            return logits_NV
        scores_RV = logits_NV.new_zeros(len(asked.choices), logits_NV.shape[1])
        index = torch.as_tensor(places, device=logits_NV.device)
        scores_RV[index] = logits_NV
        if asked.touch:
            change(scores_RV, [(0, asked.touch())], can_fuse(scores_RV.device))
        if asked.mask:
            apply_masks(scores_RV, [(0, asked.mask())])
        return scores_RV[index]

    def _drawn(self, scores_NV: Tensor, positions: np.ndarray) -> Chosen:
        """One token of each row, drawn with noise that decides nothing else."""
        if not self._sampler.is_sampled:
            best = scores_NV.argmax(dim=1, keepdim=True)
            distributions = torch.zeros_like(scores_NV).scatter_(1, best, 1.0)
            return Chosen(scores_NV.gather(1, best) * 0.0, best, distributions)
        every = torch.arange(self._vocab_size, device=scores_NV.device).expand(len(scores_NV), -1)
        noise = gumbel_at(stream_seed(self._seed, DRAFT_STREAM), positions.tolist(), every)
        best = (scores_NV.log_softmax(dim=1) + noise).argmax(dim=1, keepdim=True)
        return Chosen(scores_NV.gather(1, best) * 0.0, best, scores_NV.softmax(dim=1))  # NaN stays NaN


def download(chosen: Sequence[Chosen]) -> list[list[Candidates]]:
    """The candidates of each sequence's nodes, in one transfer for all. Tokens that cannot follow are left out."""
    width = max(one.tokens.shape[1] for one in chosen)
    padded = [
        torch.nn.functional.pad(
            torch.stack([one.scores.double(), one.tokens.double()]), (0, width - one.tokens.shape[1])
        )
        for one in chosen
    ]  # token ids are exact in float64
    scores, tokens = torch.cat(padded, dim=1).cpu().tolist()
    found, begin = list[list[Candidates]](), 0
    for one in chosen:
        rows = range(begin, begin + len(one.tokens))
        own = [_candidates(scores[row], tokens[row], one.tokens.shape[1]) for row in rows]
        if one.distributions is not None:
            own = [each._replace(distribution=each_V) for each, each_V in zip(own, one.distributions, strict=True)]
        found.append(own)
        begin = rows.stop
    return found


def _candidates(scores: list[float], tokens: list[float], width: int) -> Candidates:
    known = [(int(token), math.exp(score)) for score, token in zip(scores[:width], tokens, strict=False) if score > -60]
    return Candidates([token for token, _ in known], [min(1.0, prior) for _, prior in known])
