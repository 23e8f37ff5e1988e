"""Drafts for many sequences at once: each round is one forward of the second model for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from lp.kv_cache.cache import pages_of
from lp.methods.draft_model.candidates import Chosen, download
from lp.methods.draft_model.growth import cost_at
from lp.methods.draft_model.interface import Wish
from lp.methods.draft_model.text import DraftText

# Rows of a text that the second model reads in one forward. If other requests wait, it reads no more in a step.
CHUNK = 512
# The fewest of them while a step is computed, which may take less time.
LEAST_CHUNK = 16


def draft(wishes: Sequence[Wish], is_alone: bool, chunk: int = CHUNK) -> None:
    """Grows the trees of these wishes, which are all of the same second model. See SecondText.draft.

    chunk: rows of a text that are read in one forward, and in a step if other requests wait.
    """
    able = [wish for wish in _with_room(wishes) if wish.growth.max_depth and _text(wish).knows(wish.tokens)]
    drafting = [wish for wish in able if wish.growth.choose() and _text(wish).begin(wish.tokens)]
    growing = _prefill(drafting, is_alone, chunk)
    while asked := [(wish, nodes) for wish in growing if (nodes := wish.growth.choose())]:
        _one_round(asked)
        growing = [wish for wish, _ in asked]
    for wish in drafting:
        _text(wish).end(wish.tokens)


class DraftedText(DraftText):
    """A SecondText."""

    def draft(self, wishes: Sequence[Wish], is_alone: bool) -> None:
        if not self.is_ahead:
            draft(wishes, is_alone)

    def draft_ahead(self, wishes: Sequence[Wish], time: float) -> None:
        chunk = LEAST_CHUNK
        while chunk < CHUNK and cost_at(self.relative_costs, 2 * chunk, self.relative_cost) <= time:
            chunk *= 2
        for wish in wishes:
            text = _text(wish)
            text.begin(wish.tokens)
            wish.growth.num_unread = min(chunk, text.num_missing(wish.tokens))
        draft(wishes, is_alone=False, chunk=chunk)


def _text(wish: Wish) -> DraftText:
    assert isinstance(wish.text, DraftText)
    return wish.text


def _with_room(wishes: Sequence[Wish]) -> list[Wish]:
    """The first wishes whose keys and values fit the second model's memory at the same time.

    Replicas that divide their memory serve more sequences together than one of them has room for.
    """
    left, found = _text(wishes[0]).model.memory.num_pages, list[Wish]()
    for wish in wishes:
        needed = pages_of(len(wish.tokens) + wish.growth.most_drafts + 1)
        if needed <= left:
            found.append(wish)
            left -= needed
    return found


def _prefill(wishes: Sequence[Wish], is_alone: bool, chunk: int) -> list[Wish]:
    """Reads what the second model lacks of the texts. Returns those of which it lacks little enough to draft."""
    ready, left, is_busy = list[Wish](), chunk, False
    for wish in wishes:
        text = _text(wish)
        if not is_alone and (text.num_missing(wish.tokens) > left or is_busy):
            if not is_busy:
                _read(text, wish.tokens, chunk, most_chunks=1)
            is_busy = True
            continue
        left -= text.num_missing(wish.tokens)
        _read(text, wish.tokens, chunk)
        ready.append(wish)
    return ready


def _read(text: DraftText, tokens: Sequence[int], chunk: int, most_chunks: int | None = None) -> None:
    """Computes what is missing but for the last chunk of it, or so many chunks of it."""
    for rows in islice(text.prefill(tokens, chunk), most_chunks):
        text.model.forward_many([rows])


@torch.inference_mode()
def _one_round(asked: Sequence[tuple[Wish, list[int]]]) -> None:
    rounds = [_text(wish).round(wish.tokens, wish.growth, nodes) for wish, nodes in asked]
    logits_LV = _text(asked[0][0]).model.forward_many([one.rows for one in rounds])
    chosen, begin = list[Chosen](), 0
    for (wish, nodes), one in zip(asked, rounds, strict=True):
        rows = torch.tensor([begin + place for place in one.places], device=logits_LV.device)
        chosen.append(_text(wish).chooser.choose(logits_LV[rows], wish.tokens, wish.growth, nodes))
        begin += one.rows.num_logits
    for (wish, nodes), found in zip(asked, download(chosen), strict=True):
        wish.growth.took_round(nodes)
        for number, candidates in zip(nodes, found, strict=True):
            wish.growth.add(number, candidates)
