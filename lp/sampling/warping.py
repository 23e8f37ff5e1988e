"""Temperature, top-k, top-p and min-p over the whole vocabulary, with settings of each row's own.

The arithmetic is that of transformers' warpers, in the order of its `generate`, so a row's scores are theirs to the
last bit, whatever rows are beside it.

    R rows, V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor

from lp.platform.hardware import upload
from lp.sampling.rows import OnDevice, Rows


def warp(rows: Rows) -> Tensor:
    """[R, V] the rows' scores after the warpers, -inf for tokens that are dropped. The scores may be the rows' own if
    no row has a warper.
    """
    scores_RV = rows.scores
    if not any(map(rows.any, ("temperature", "top_k", "top_p", "min_p"))):
        return scores_RV
    how = rows.on_device()
    if rows.any("temperature"):
        scores_RV = scores_RV / how.temperature
    if rows.any("top_k"):
        scores_RV = keep_top_k(scores_RV, how, int(rows.setting("top_k").max()))
    if rows.any("top_p"):
        scores_RV = _keep_top_p(scores_RV, how, upload(rows.dropped, scores_RV.device)[:, None])
    if rows.any("min_p"):
        scores_RV = keep_min_p(scores_RV, how)
    return scores_RV


def keep_top_k(scores_RV: Tensor, how: OnDevice, largest: int) -> Tensor:
    """Drops all tokens worse than a row's top-k-th. largest: the largest top-k of a row."""
    best = scores_RV.topk(min(largest, scores_RV.shape[1]), dim=1).values
    worst_kept = best.gather(1, (how.top_k - 1).clamp(0, best.shape[1] - 1))
    return scores_RV.masked_fill((scores_RV < worst_kept) & (how.top_k > 0), -torch.inf)


def _keep_top_p(scores_RV: Tensor, how: OnDevice, dropped_R1: Tensor) -> Tensor:
    """Drops the worst tokens that have at most the share `dropped` of the probability together, but never the best."""
    upwards, order = scores_RV.sort(dim=1)
    is_dropped = (upwards.softmax(dim=1).cumsum(dim=1) <= dropped_R1) & (how.top_p < 1)
    is_dropped[:, -1] = False
    return scores_RV.masked_fill(is_dropped.scatter(1, order, is_dropped), -torch.inf)


def keep_min_p(scores_RV: Tensor, how: OnDevice) -> Tensor:
    """Drops tokens whose probability is less than min-p times the best one's."""
    shares = scores_RV.softmax(dim=1)
    return scores_RV.masked_fill(shares < how.min_p * shares.amax(dim=1, keepdim=True), -torch.inf)
