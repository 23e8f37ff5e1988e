"""The Chooser of rows whose targets are coupled to drafts.

R rows, V vocabulary, K tokens chosen for each row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lp.sampling.couplings.base import Coupling, Draws, Given
from lp.sampling.couplings.rejection import Rejection
from lp.sampling.couplings.typical import Typical
from lp.sampling.noise import noise_of_rows
from lp.sampling.rows import Rows
from lp.sampling.top_k import best_tokens
from lp.sampling.warping import warp
from lp.tree import NOT_A_TOKEN, Coupled, Proposal

# By the name of its rule, what makes a coupling of the rule's parameters.
COUPLINGS: Mapping[str, Callable[..., Coupling]] = {"rejection": Rejection, "typical": Typical}


@dataclass(frozen=True, eq=False)
class CoupledChooser:
    """Chooses for the rows of one sequence's tree; no other chooser equals it. It settles every row."""

    coupling: Coupling
    proposals: Sequence[Proposal]
    seed: int
    num_tokens: int
    is_greedy: bool

    def __call__(self, rows: Rows) -> Tensor:
        """See Chooser."""
        scores_RV = rows.scores if self.is_greedy else warp(rows)
        noisy = scores_RV
        if rows.any("is_drawn"):
            noisy = noise_of_rows(rows.noise, rows.positions, rows.setting("is_drawn")) + scores_RV
        usual = best_tokens(noisy, self.num_tokens)
        probabilities = _on_one(usual.tokens[:, 0], scores_RV) if self.is_greedy else scores_RV.softmax(dim=1)
        draws = Draws(self.seed, rows.positions)
        targets = self.coupling.targets(Given(probabilities, self.proposals, usual.tokens[:, 0], draws))
        tokens_RK = _with_first(targets, usual.tokens).where(usual.are_numbers[:, None], NOT_A_TOKEN)
        return torch.cat([tokens_RK.new_ones(len(tokens_RK), 1), tokens_RK], dim=1)


def make_chooser(coupled: Coupled, seed: int, num_tokens: int, is_greedy: bool) -> CoupledChooser:
    """The chooser of a tree's rows. seed: of the sequence. num_tokens: K. is_greedy: whether nothing is drawn."""
    coupling = COUPLINGS[coupled.rule](*coupled.parameters)
    return CoupledChooser(coupling, coupled.proposals, seed, num_tokens, is_greedy)


def _on_one(tokens_R: Tensor, like_RV: Tensor) -> Tensor:
    """[R, V] distributions that have all on one token."""
    return torch.zeros_like(like_RV).scatter_(1, tokens_R[:, None], 1.0)


def _with_first(targets_R: Tensor, tokens_RK: Tensor) -> Tensor:
    """[R, K] the targets, and the best of the other tokens behind them."""
    is_target = tokens_RK == targets_R[:, None]
    is_target[:, -1] |= ~is_target.any(dim=1)  # the last one gives way to a target that is none of them
    moved = tokens_RK.gather(1, is_target.logical_not().int().argsort(dim=1, stable=True))
    moved[:, 0] = targets_R
    return moved
