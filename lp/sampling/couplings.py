"""Couplings: rules by which a row's target depends on what was drafted after the row.

Without one, targets do not depend on drafts: they are the arg max, or what the noise of their positions draws, so a
text is the same whatever is drafted. A coupling decides the target of each row by its drafts; verification by equality
with the targets stays as it is. It must decide each row by itself, as ranks that share a tree have different rows of
it. A coupling is a function here and a line in `COUPLINGS`.

    R rows of a tree, or of a rank's part of it; V vocabulary; K tokens chosen for each row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.sampling.choosers import warp
from lp.sampling.drawn import noisy
from lp.sampling.noise import gumbel, stream_seed, uniform_at
from lp.sampling.rows import Chooser, Rows
from lp.sampling.top_k import best_tokens
from lp.tree import NOT_A_TOKEN, Coupled, Proposal

# The streams of noise: what a draft draws, and what decides on it, must be independent of each other and of the noise
# that draws a token when nothing was accepted.
DRAFT_STREAM, DECISION_STREAM = 1, 2


class Draws(NamedTuple):
    """The random numbers of rows: pure functions of the seed and of the position whose token is decided.

    positions: [R]. They are the same on every rank, for every part of a tree.
    """

    seed: int
    positions: np.ndarray

    def uniform(self, row: int, place: int) -> float:
        """A number between 0 and 1 for the decision about the child with this number."""
        return uniform_at(stream_seed(self.seed, DECISION_STREAM), int(self.positions[row]), place)

    def gumbel(self, row: int, weights_V: Tensor) -> Tensor:
        """[V] the noise that draws a token where no draft decides. weights_V: gives size and device."""
        return gumbel(self.seed, int(self.positions[row]), len(weights_V), weights_V.device)


class Given(NamedTuple):
    """What the targets of some rows are decided by.

    probabilities: [R, V] float32, the processed distribution of each row; in greedy decoding all of it is on one token.
    proposals: [R] what was drafted after each row, in the whole tree. usual: [R] int64, the targets that the rows would
    have without a coupling.
    """

    probabilities: Tensor
    proposals: Sequence[Proposal]
    usual: Tensor
    draws: Draws


def rejection(given: Given) -> Tensor:
    """[R] targets by speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    A draft that was drawn from q is accepted with probability min(1, p / q), p being the model's distribution.
    Otherwise the token is drawn from what p has beyond q. The text is distributed exactly as plain sampling, but it is
    another text than plain sampling gives with the same seed. Several drafts of a row, drawn without replacement, are
    tried one after the other: each rejection leaves what p has beyond q, and takes the draft out of q (Jeon et al.,
    "Recursive speculative decoding", arXiv 2402.14160). Rows without drawn drafts keep their usual targets.
    """
    chosen = given.usual.tolist()
    for row, proposal in enumerate(given.proposals):
        if proposal.tokens and proposal.probabilities is not None:
            chosen[row] = decide(given.probabilities[row], proposal, row, given.draws)
    return given.usual.new_tensor(chosen)


def decide(model_V: Tensor, proposal: Proposal, row: int, draws: Draws) -> int:
    """The target of one row: the first of its drafts that is accepted, or what is drawn from the rest.

    model_V: the model's distribution. It may have more tokens than the draft's, or fewer: weights are often padded.
    """
    left = model_V.double()
    draft = _resize(proposal.probabilities.to(left.device).double(), len(left))
    for place, token in enumerate(proposal.tokens):
        if draws.uniform(row, place) * float(draft[token]) < float(left[token]):
            return token
        left = _normalise((left - draft).clamp_(min=0.0), left)
        draft = draft.clone()
        draft[token] = 0.0
        draft = _normalise(draft, draft)
    return int((left.log() + draws.gumbel(row, left)).argmax())


def _resize(probabilities_V: Tensor, size: int) -> Tensor:
    """The same distribution over so many tokens."""
    missing = size - len(probabilities_V)
    return torch.nn.functional.pad(probabilities_V, (0, missing)) if missing else probabilities_V


def _normalise(weights_V: Tensor, otherwise: Tensor) -> Tensor:
    """Weights whose sum is 1; the others if nothing but rounding is left of these."""
    total = float(weights_V.sum())
    return weights_V / total if total > 1e-9 else otherwise


def typical(given: Given, epsilon: float, delta: float) -> Tensor:
    """[R] targets by typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1). It is lossy: text is not distributed
    as the model's.

    A draft is accepted if the model's probability of it is above min(epsilon, delta * exp(-H)), where H is the entropy
    of the model's distribution. Where none is, the target is the usual one. The paper takes the longest path of
    accepted drafts; here each row takes its first child that is accepted, and children come in the order of their
    probability by the heads. In greedy decoding, where one token has all probability, that token alone is accepted.
    """
    chosen = given.usual.tolist()
    needed = thresholds(given.probabilities, epsilon, delta).tolist()
    for row, proposal in enumerate(given.proposals):
        if proposal.tokens:
            found = given.probabilities[row, list(proposal.tokens)].tolist()
            likely = (token for token, own in zip(proposal.tokens, found, strict=True) if own > needed[row])
            chosen[row] = next(likely, chosen[row])
    return given.usual.new_tensor(chosen)


def thresholds(probabilities_RV: Tensor, epsilon: float, delta: float) -> Tensor:
    """[R] the probability that a draft needs after each row."""
    entropy_R = torch.special.entr(probabilities_RV).sum(dim=1)
    return (delta * (-entropy_R).exp()).clamp(max=epsilon)


# Decide the targets of rows, [R] int64, from what is given and the rule's parameters. By name of the rule.
COUPLINGS: dict[str, Callable[..., Tensor]] = {"rejection": rejection, "typical": typical}


@dataclass(frozen=True, eq=False)
class CoupledChooser(Chooser):
    """Decides every row of one sequence's tree; no other chooser equals it."""

    coupled: Coupled
    seed: int
    num_tokens: int
    is_greedy: bool

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        scores_RV = rows.scores if self.is_greedy else warp(rows)
        usual = best_tokens(noisy(scores_RV, rows), self.num_tokens)
        if self.is_greedy:  # all probability is on one token
            probabilities_RV = torch.zeros_like(scores_RV).scatter_(1, usual.tokens[:, :1], 1.0)
        else:
            probabilities_RV = scores_RV.softmax(dim=1)
        draws = Draws(self.seed, rows.positions)
        given = Given(probabilities_RV, self.coupled.proposals, usual.tokens[:, 0], draws)
        targets = COUPLINGS[self.coupled.rule](given, *self.coupled.parameters)
        tokens_RK = _with_first(targets, usual.tokens).where(usual.are_numbers[:, None], NOT_A_TOKEN)
        return torch.cat([tokens_RK.new_ones(len(tokens_RK), 1), tokens_RK], dim=1)


def _with_first(targets_R: Tensor, tokens_RK: Tensor) -> Tensor:
    """[R, K] the targets, and the best of the other tokens behind them."""
    is_target = tokens_RK == targets_R[:, None]
    is_target[:, -1] |= ~is_target.any(dim=1)  # the last one gives way to a target that is none of them
    moved = tokens_RK.gather(1, is_target.logical_not().int().argsort(dim=1, stable=True))
    moved[:, 0] = targets_R
    return moved
