"""Chooses the tokens of a step that was run: all sequences' in one go, by as many kinds of choosing as they need.

L rows whose logits are wanted, N of them of one sequence, K tokens, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lp.hardware import Download
from lp.model.causal import Choosing, Chosen


@dataclass(frozen=True)
class Computed:
    """A step that was run. rows: of the logits, those of each sequence that are wanted.

    choose: launches a kind's choosing; returns its tokens, int64 [rows of the logits, K]. is_lasting: whether the next
    step leaves the logits alone.
    """

    logits: Tensor
    rows: list[slice]
    choose: Callable[[str], Tensor]
    is_lasting: bool


def choose_all(computed: Computed, how: Sequence[Choosing | None]) -> list[Chosen]:
    """See ChoosesTokens.choose. Each kind's tokens come to the host in one copy."""
    for own, one in zip(computed.rows, how, strict=True):
        if one and one.change:
            one.change(computed.logits[own])
    scores = _scores(computed, how)
    downloads = {kind: _download(computed, how, kind) for kind in dict.fromkeys(one.kind for one in how if one)}
    return [
        Chosen(downloads[one.kind](own) if one else None, logits)
        for own, one, logits in zip(computed.rows, how, scores, strict=True)
    ]


def _scores(computed: Computed, how: Sequence[Choosing | None]) -> list[Tensor]:
    """The logits of each sequence's rows. Those that somebody may read later are copied, all at once."""
    kept = [own for own, one in zip(computed.rows, how, strict=True) if own.stop > own.start and _is_read(one)]
    if not kept or computed.is_lasting:
        return [computed.logits[own] for own in computed.rows]
    first, last = kept[0].start, kept[-1].stop
    copies = computed.logits[first:last].clone()
    return [
        copies[own.start - first : own.stop - first] if _is_read(one) else computed.logits[own]
        for own, one in zip(computed.rows, how, strict=True)
    ]


def _is_read(one: Choosing | None) -> bool:
    return one is None or not one.is_settled


def _download(
    computed: Computed, how: Sequence[Choosing | None], kind: str
) -> Callable[[slice], Callable[[], np.ndarray]]:
    """Launches a kind's choosing and the copy of its tokens. Returns what finds, by a sequence's rows, what waits for
    their tokens.
    """
    chosen_by_it = [own for own, one in zip(computed.rows, how, strict=True) if one and one.kind == kind]
    first, last = chosen_by_it[0].start, chosen_by_it[-1].stop
    download = Download(computed.choose(kind)[first:last])
    return lambda own: lambda: download.wait()[own.start - first : own.stop - first]
