"""What chains of drafts of a copy yield at best, replayed on real texts: no tree, no other source, no decisions.

A text is known by its places: of each token, the place among the copy's candidates after the tokens before it. A step
verifies a chain of the copy's first choices, and its end is covered if ranks have drafted below the token that it ends
with while it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lp.kv_cache.cache import KVCache
from lp.methods.draft_model.calibration import WIDTH
from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.tree import chain

# Seconds by the length of a chain.
SecondsOf = Callable[[int], float]
# Names of ways; see `ideals`.
BEFORE, FREE, MEANWHILE = (
    "drafted before steps",
    "every end covered, drafts free",
    "every end covered, drafted during steps",
)
# The place of a token that is no candidate.
NOWHERE = WIDTH
# The longest chain that is tried.
LONGEST = 8


@torch.inference_mode()
def places_of(copy: CausalModel, prompt: KVCache, last: int, text: Sequence[int]) -> list[int]:
    """The place of each token of a text, 0 to WIDTH - 1, or NOWHERE.

    prompt: the model's own keys and values of the prompt but for its last token.
    """
    cache, given = prompt.fork(), [last, *text[:-1]]
    logits_RV = copy.forward_many([SequenceRows(chain(given), cache, len(given))])
    cache.release()
    best_RW = logits_RV.topk(WIDTH, dim=1).indices.tolist()
    return [best.index(token) if token in best else NOWHERE for best, token in zip(best_RW, text, strict=True)]


def right_by_depth(texts: Sequence[Sequence[int]], most: int) -> list[float]:
    """Returns for each depth the share of first choices that are right, of those that follow right ones alone."""
    shares = list[float]()
    for depth in range(1, 1 + most):
        reached = [text[at : at + depth] for text in texts for at in range(len(text) - depth + 1)]
        reached = [places for places in reached if not any(places[:-1])]
        if not reached:
            break
        shares.append(sum(places[-1] == 0 for places in reached) / len(reached))
    return shares


@dataclass(frozen=True)
class ChainTimes:
    """Seconds: of a step by the length of its chain, and of a draft. exchange_s: of a step on several ranks."""

    steps_s: Sequence[float]
    draft_s: float
    exchange_s: float = 0.0

    def waiting_s(self, length: int) -> float:
        """A step whose chain is drafted before it."""
        return length * self.draft_s + self.steps_s[length]

    def during_s(self, length: int) -> float:
        """A step during which another rank drafts the next chain."""
        return max(self.steps_s[length], length * self.draft_s) + self.exchange_s

    def free_s(self, length: int) -> float:
        """A step whose chain costs nothing."""
        return self.steps_s[length] + self.exchange_s


def replay(
    texts: Sequence[Sequence[int]], length: int, num_covered: int, covered_s: float, missed_s: float, waits: bool
) -> float:
    """Seconds for each token if chains have so many drafts.

    num_covered: candidates after each draft that are covered. covered_s: of a step that begins where drafts are.
    missed_s: of one that does not. waits: whether it waits for drafts; if not, it has none.
    """
    seconds = 0.0
    for places in texts:
        at, is_covered = 0, False
        while at < len(places):
            seconds += covered_s if is_covered else missed_s
            if is_covered or waits:
                drafts = places[at : at + length]
                at += next((number for number, place in enumerate(drafts) if place), len(drafts))
            is_covered = at < len(places) and places[at] < num_covered
            at += 1
    return seconds / sum(map(len, texts))


@dataclass(frozen=True)
class Ideal:
    """Seconds for each token by the best length of chains, and that length, for one way of drafting."""

    token_s: float
    length: int


def ideals(texts: Sequence[Sequence[int]], times: ChainTimes) -> dict[str, Ideal]:
    """Returns for each way how fast chains are on one rank that drafts before its steps, and on ranks that draft ahead.

    FREE: every end is covered, and drafts cost nothing. MEANWHILE: every end is covered, and a rank drafts one chain
    while a step is computed. The others: so many candidates after each draft are covered, and where that was not
    enough, the next step has no drafts, or waits for them.
    """
    lengths, every, exchange_s = range(1, 1 + LONGEST), 1 + NOWHERE, times.exchange_s

    def best(num_covered: int, covered_s: SecondsOf, missed_s: SecondsOf, waits: bool = True) -> Ideal:
        token_s = {
            length: replay(texts, length, num_covered, covered_s(length), missed_s(length), waits) for length in lengths
        }
        length = min(token_s, key=lambda one: token_s[one])
        return Ideal(token_s[length], length)

    def plain_s(length: int) -> float:
        return times.steps_s[0] + exchange_s

    def waiting_s(length: int) -> float:
        return times.waiting_s(length) + exchange_s

    found = {
        BEFORE: best(every, times.waiting_s, times.waiting_s),
        FREE: best(every, times.free_s, times.free_s),
        MEANWHILE: best(every, times.during_s, times.during_s),
    }
    for number in range(1, 1 + WIDTH):
        found[covering(number)] = best(number, times.during_s, plain_s, waits=False)
        found[covering(number, waits=True)] = best(number, times.during_s, waiting_s)
    return found


def covering(number: int, waits: bool = False) -> str:
    """The name of a way that covers so many candidates."""
    return f"{number} covered{', waits otherwise' if waits else ''}"
