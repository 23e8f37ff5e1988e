"""The scores of contrastive decoding: an expert's log-probabilities minus an amateur's (Li et al., arXiv 2210.15097,
section 3), which take the place of the logits. Knows nothing of where logits come from.

    L rows of all sequences, R rows of one, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

# Subtracted from the log-probabilities of tokens that are not plausible. They come behind all that are, in their order,
# so that one of them is chosen only where a grammar or a ban leaves no other. Their probability is 0.
FAR = 1e4


class Contrast(NamedTuple):
    """How scores are made of two distributions. alpha, weight, temperature (of the amateur): see
    lp.methods.contrastive.Contrastive. of_second: whether a second model is the amateur, rather than the model itself.
    """

    alpha: float
    weight: float
    temperature: float
    of_second: bool


def contrast(expert_RV: Tensor, amateur_RV: Tensor, how: Contrast) -> Tensor:
    """[R, V] log p_expert - weight * log p_amateur of all plausible tokens: those at least alpha times as likely as the
    expert's best (the paper's equation 2).

    expert_RV, amateur_RV: float32 logits. The amateur may have another number of columns, as vocabularies are padded:
    tokens that it lacks count as certain for it.
    """
    logs_RV = expert_RV.log_softmax(dim=1)
    of_amateur_RV = (amateur_RV / how.temperature).log_softmax(dim=1)[:, : logs_RV.shape[1]]
    of_amateur_RV = pad(of_amateur_RV, (0, logs_RV.shape[1] - of_amateur_RV.shape[1]))
    least_R1 = logs_RV.amax(dim=1, keepdim=True) + (math.log(how.alpha) if how.alpha else -math.inf)
    is_plausible_RV = logs_RV >= least_R1
    return torch.where(is_plausible_RV, logs_RV - how.weight * of_amateur_RV, logs_RV - FAR)


def as_wide(logits_RV: Tensor, vocab_size: int) -> Tensor:
    """[R, vocab_size] another model's logits, without columns that only it has; those that it lacks are -inf."""
    return pad(logits_RV[:, :vocab_size], (0, max(0, vocab_size - logits_RV.shape[1])), value=-math.inf)


def apply(logits_LV: Tensor, contrasts: Sequence[tuple[slice, Contrast, Tensor | None]]) -> None:
    """Puts scores in the place of the logits of some sequences' rows, those with the same settings together.

    contrasts: for each of these sequences its rows, how they are scored, and the amateur's logits, float32 [R, V]; None
    if they are the expert's own.
    """
    groups: dict[Contrast, list[tuple[slice, Tensor | None]]] = {}
    for rows, how, amateur in contrasts:
        groups.setdefault(how, []).append((rows, amateur))
    for how, members in groups.items():
        expert_RV = torch.cat([logits_LV[rows] for rows, _ in members])
        amateur_RV = torch.cat([logits_LV[rows] if own is None else own for rows, own in members])
        scores = contrast(expert_RV, amateur_RV, how).split([rows.stop - rows.start for rows, _ in members])
        for (rows, _), of_rows in zip(members, scores, strict=True):
            logits_LV[rows] = of_rows
