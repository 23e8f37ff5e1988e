"""What an engine has learnt about drafts from all its requests. New requests start from it.

It is kept apart by settings and temperature, as text sampled at a high temperature is harder to guess. It contains no
tokens of requests, except what requests of one owner share if their settings say so.

What candidates turned out to be worth may go on to another engine or runner (`Learnt`). What depends on the time of a
step is learnt anew there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import astuple
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lp.drafting import simple
from lp.drafting.account import DraftProfile, Estimates, Kinds, SpeculationAccount, WindowChoice
from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import Corpus
from lp.drafting.drafter import Drafter, Drafters, NativeDrafters
from lp.drafting.settings import DraftSettings
from lp.platform.library import library
from lp.step_cost import StepCost, StepTimes

T = TypeVar("T")
# Most owners whose shared n-grams are kept.
MOST_OWNERS = 64
# Most rows of a step if step times are not known: so many are nearly free on most machines.
UNKNOWN_ROWS = 32
# The most guesses of Jacobi decoding with a window of "auto".
LONGEST_CHAIN = 32
# Numbers of guesses that Jacobi decoding tries out.
CHAIN_LENGTHS = (0, 1, 2, 4, 8, 16, LONGEST_CHAIN)
# Largest share of the time that trials of one of them may waste. Nothing else yields drafts there, so it may be large.
CHAIN_SHARE_OF_TIME = 0.02
# Most settings and temperatures whose estimates go on.
MOST_LEARNT = 16


class Learnt(NamedTuple):
    """What the candidates of requests with the same settings and about the same temperature were worth; JSON values.

    key: the settings and the temperature's number. hits, trials: see Estimates.
    """

    key: list[object]
    hits: list[float]
    trials: list[float]


def merge(learnt: Sequence[Sequence[Sequence[Any]]]) -> list[Learnt]:
    """What several ranks have learnt, as one; equal on all of them.

    learnt: of each rank. A kind is as likely as in the trials of all ranks together, and counts for as many trials as
    it has on the rank with the most, so that what comes later changes it as fast as ever.
    """
    by_key: dict[tuple[object, ...], list[Learnt]] = {}
    for one in (Learnt(*values) for of_rank in learnt for values in of_rank):
        by_key.setdefault(tuple(one.key), []).append(one)
    return [Learnt(list(key), *_merged(several)) for key, several in by_key.items()]


def _merged(several: Sequence[Learnt]) -> tuple[list[float], list[float]]:
    """Hits and trials of all, for each kind."""
    hits = [sum(of_kind) for of_kind in zip(*(one.hits for one in several), strict=True)]
    trials = list(zip(*(one.trials for one in several), strict=True))
    most = [max(of_kind) for of_kind in trials]
    return [right / sum(of_kind) * number for right, of_kind, number in zip(hits, trials, most, strict=True)], most


class ChainProfile(NamedTuple):
    """What was learnt from requests of a similar temperature about how many guesses of Jacobi decoding pay off."""

    lengths: WindowChoice
    cost: StepCost


def usual_drafters(index: AnswerIndex | None, corpus: Corpus | None, vocab_size: int | None = None) -> Drafters:
    """The library's drafters; Python's where there is no library, or the user has written sources."""
    found = None if simple.OWN_SOURCES else library()
    return simple.SimpleDrafters(vocab_size) if found is None else NativeDrafters(found, index, corpus)


class DraftHistory:
    """The draft profiles and shared knowledge of one engine, its index and its corpus.

    step_times: its runner's, the same on all ranks; None if they are not known. num_parts: the runner's, which may have
    fewer parts than the one that was measured. index, corpus: the same on all ranks; None without.
    """

    def __init__(
        self,
        step_times: StepTimes | None = None,
        num_parts: int | None = None,
        index: AnswerIndex | None = None,
        learnt: Sequence[Learnt] = (),
        corpus: Corpus | None = None,
        make_drafters: Callable[[AnswerIndex | None, Corpus | None], Drafters] | None = None,
        vocab_size: int | None = None,
    ):
        """learnt: by engines before this one. make_drafters: for an index and a corpus; None is `usual_drafters`.
        vocab_size: of the model; None if it is not known.
        """
        self.step_times = step_times
        self.index, self.corpus = index, corpus
        self._num_parts = num_parts
        # What candidates are worth by settings and temperature, and the rest by the sequences of a step as well.
        self._learnt: dict[tuple[object, ...], tuple[Kinds, Estimates]] = {}
        self._profiles: dict[tuple[object, ...], DraftProfile] = {}
        self._chains: dict[int, ChainProfile] = {}
        # Those that depend on step times, by their most rows, whether tokens are sampled, and the sequences of a step.
        self._costs: dict[tuple[int, bool, int], StepCost] = {}
        self._others: dict[tuple[str, int], Any] = {}
        self._before = {tuple(one.key): one for one in learnt}
        self._shared: OrderedDict[str, Any] = OrderedDict()
        self._make_drafters = make_drafters or partial(usual_drafters, vocab_size=vocab_size)
        self._drafters = self._make_drafters(index, corpus)
        self._of_one_part: DraftHistory | None = None

    def of_one_part(self) -> DraftHistory:
        """A history of requests whose steps one part of the runner computes. All requests learn together."""
        if self._of_one_part is None:
            self._of_one_part = copy(self)
            self._of_one_part._num_parts = 1
            self._of_one_part._profiles, self._of_one_part._chains, self._of_one_part._costs = {}, {}, {}
        return self._of_one_part

    def update_times(self, step_times: StepTimes) -> None:
        """Decides by other step times from now on, also for requests that have begun. What was learnt stays."""
        self.step_times = step_times
        times = self._times()
        for cost in self._costs.values():
            cost.update(times)
        for profile in self._profiles.values():
            profile.windows.update(profile.cost)
            profile.account.update(profile.cost)
        for chains in self._chains.values():
            chains.lengths.update(chains.cost)
        if self._of_one_part is not None:
            self._of_one_part.update_times(step_times)

    def learnt(self) -> list[Learnt]:
        """What candidates are worth, for an engine after this one."""
        found = dict(self._before)
        for key, (_, estimates) in self._learnt.items():
            found.pop(key, None)
            found[key] = Learnt(list(key), list(estimates.hits), list(estimates.trials))
        return list(found.values())[-MOST_LEARNT:]

    def following(
        self, step_times: StepTimes | None, num_parts: int, learnt: Sequence[Learnt], keep_shared: bool
    ) -> DraftHistory:
        """A history for another runner, which begins with what was learnt.

        keep_shared: whether it also begins with what the requests of an owner share.
        """
        after = DraftHistory(step_times, num_parts, self.index, learnt, self.corpus, self._make_drafters)
        if keep_shared:
            after._shared = self._shared
        return after

    def drafter(self, settings: DraftSettings, prompt: Sequence[int], temperature: float, owner: str | None) -> Drafter:
        """A drafter for a new sequence. owner: who sent the request; None shares with nobody."""
        shared = self.shared(owner) if settings.shared_drafts and owner is not None else None
        profile = self.profile(settings, temperature)
        return self._drafters.new_drafter(profile, settings, prompt, temperature > 0, shared)

    def profile(self, settings: DraftSettings, temperature: float, load: int = 1) -> DraftProfile:
        """The profile of requests with these settings and about this temperature. load: sequences of a step."""
        key = (*astuple(settings), _regime(temperature))
        if key not in self._learnt:
            kinds = Kinds(settings, simple.own_kinds(settings))
            self._learnt[key] = kinds, Estimates(kinds.priors)
            if before := self._before.get(key):
                self._learnt[key][1].begin(before.hits, before.trials)
        load = nearest_power(load)
        if (*key, load) not in self._profiles:
            self._profiles[*key, load] = self._fresh(settings, temperature > 0, load, *self._learnt[key])
        return self._profiles[*key, load]

    def of_all(self, name: str, temperature: float, make: Callable[[], T]) -> T:
        """What requests at about this temperature learn together under a name. make: makes it for the first of them."""
        return self._others.setdefault((name, _regime(temperature)), make())

    def chains(self, temperature: float) -> ChainProfile:
        """The profile of Jacobi decoding's chains at about this temperature."""
        regime = _regime(temperature)
        if regime not in self._chains:
            cost = self.cost(0, CHAIN_LENGTHS[-1] + 1, temperature)
            lengths = [length for length in CHAIN_LENGTHS if length < cost.most_rows]
            self._chains[regime] = ChainProfile(WindowChoice(lengths, 1, cost, False, CHAIN_SHARE_OF_TIME), cost)
        return self._chains[regime]

    def cost(self, rows: int, max_rows: int, temperature: float) -> StepCost:
        """The times of steps of one sequence. rows, max_rows: see DraftSettings."""
        return self._cost(rows, max_rows, temperature > 0, load=1)

    def _fresh(
        self, settings: DraftSettings, is_sampled: bool, load: int, kinds: Kinds, estimates: Estimates
    ) -> DraftProfile:
        cost = self._cost(settings.rows, settings.max_rows, is_sampled, load)
        levels = settings.ngram - 1
        is_unknown = self.step_times is None and not settings.rows
        window_rows = cost.most_rows // (2 * load if is_unknown else 2)
        largest = (
            min(settings.max_window, window_rows // levels)
            if settings.window_drafts and self._drafters.has_window
            else 0
        )
        columns = sorted({0, largest // 3, 2 * largest // 3, largest})
        has_index = settings.index_drafts and self.index is not None
        has_files = has_index or (settings.corpus_drafts and self.corpus is not None)
        has_rivals = settings.suffix_drafts or settings.recycled_drafts or settings.shared_drafts or has_files
        windows = WindowChoice(columns, levels, cost, has_rivals)
        return DraftProfile(kinds, cost, estimates, windows, SpeculationAccount(cost))

    def _cost(self, rows: int, max_rows: int, is_sampled: bool, load: int) -> StepCost:
        if rows:
            return StepCost(StepTimes.flat(), rows)
        if self.step_times is None:
            return StepCost(StepTimes.flat(), min(max_rows, UNKNOWN_ROWS))
        key = max_rows, is_sampled, load
        if key not in self._costs:
            self._costs[key] = StepCost(self._times(), *key)
        return self._costs[key]

    def _times(self) -> StepTimes:
        assert self.step_times is not None
        return self.step_times.for_parts(self._num_parts or self.step_times.num_parts)

    def shared(self, owner: str) -> Any:
        """What one owner's requests share. The owners not seen for longest are forgotten first."""
        if owner not in self._shared:
            self._shared[owner] = self._drafters.new_shared()
        self._shared.move_to_end(owner)
        if len(self._shared) > MOST_OWNERS:
            self._shared.popitem(last=False)
        return self._shared[owner]


def _regime(temperature: float) -> int:
    """Texts of one regime are about equally hard to guess."""
    return 0 if temperature == 0 else 1 if temperature < 0.9 else 2


def nearest_power(number: int) -> int:
    """The power of two whose ratio to the number is nearest to 1."""
    return 1 << (number * number).bit_length() // 2
