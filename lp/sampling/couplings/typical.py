"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1). It is lossy: text is not distributed as the model's.

A draft is accepted if the model's probability of it is above min(epsilon, delta * exp(-H)), where H is the entropy of
the model's distribution: the less sure the model is, the less a draft needs. Where no draft is accepted, the target is
the usual one. The paper takes the longest path of accepted drafts; here each row takes its first child that is
accepted, and children come in the order of their probability by the heads.

    R rows, V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lp.sampling.couplings.base import Given


@dataclass(frozen=True)
class Typical:
    """The Coupling `typical`. In greedy decoding, where one token has all probability, it accepts that token alone."""

    epsilon: float
    delta: float

    def targets(self, given: Given) -> Tensor:
        chosen = given.usual.tolist()
        needed = thresholds(given.probabilities, self.epsilon, self.delta).tolist()
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
