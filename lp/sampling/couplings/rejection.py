"""Classical speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

A draft that was drawn from q is accepted with probability min(1, p / q), p being the model's distribution. Otherwise
the token is drawn from what p has beyond q. The text is distributed exactly as plain sampling, but it is another text
than plain sampling gives with the same seed.

Several drafts of a row, drawn without replacement, are tried one after the other: each rejection leaves what p has
beyond q, and takes the draft out of q (Jeon et al., "Recursive speculative decoding", arXiv 2402.14160).

    R rows, V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor

from lp.sampling.couplings.base import Draws, Given
from lp.tree import Proposal


class Rejection:
    """The Coupling `rejection`. Rows without drawn drafts keep their usual targets."""

    def targets(self, given: Given) -> Tensor:
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
    draft = _sized(proposal.probabilities.to(left.device).double(), len(left))
    for place, token in enumerate(proposal.tokens):
        if draws.uniform(row, place) * float(draft[token]) < float(left[token]):
            return token
        left = _normalised((left - draft).clamp_(min=0.0), left)
        draft = draft.clone()
        draft[token] = 0.0
        draft = _normalised(draft, draft)
    return int((left.log() + draws.gumbel(row, left)).argmax())


def _sized(probabilities_V: Tensor, size: int) -> Tensor:
    """The same distribution over so many tokens."""
    missing = size - len(probabilities_V)
    return torch.nn.functional.pad(probabilities_V, (0, missing)) if missing else probabilities_V


def _normalised(weights_V: Tensor, otherwise: Tensor) -> Tensor:
    """Weights whose sum is 1; the others if nothing but rounding is left of these."""
    total = float(weights_V.sum())
    return weights_V / total if total > 1e-9 else otherwise
