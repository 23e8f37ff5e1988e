"""What drafts are worth and what they may cost, as requests with the same settings have found out together.

`Estimates` counts how often each kind of candidate is right. `SpeculationAccount` bounds the time that speculation may
lose where it does not pay off. `WindowChoice` chooses the size of the lookahead window. All times are modelled ones.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lp.drafting.ngrams import FOLLOWERS
from lp.drafting.settings import DraftSettings
from lp.step_cost import StepCost

# Lengths of the matches that are told apart in the text, among the window's n-grams and in a corpus. In a corpus one
# token says too little, and is the slowest to look up.
TEXT_LENGTHS, WINDOW_LENGTHS, CORPUS_LENGTHS = (1, 2, 3, 4, 6, 8), (1, 2, 3, 4), (2, 3, 4, 5, 6, 8)
# Less likely drafts are not worth the work of keeping track of them.
LEAST_PROBABILITY = 1e-3
# Each trial of a kind multiplies the weight of all earlier ones by this, so that about the last hundred count.
DECAY = 0.99
# The number of trials that a kind's prior probability counts as.
PRIOR_TRIALS = 3.0
# The share of its prior probability that a kind has where another source is surer of another candidate.
RIVALLED = 0.5


def priors_of_sources(settings: DraftSettings) -> dict[str, list[float]]:
    """By the name of each source, the probability assumed for the candidates of each of its kinds before any was seen.

    The kinds of texts are a length of the match and a rank: longer matches and better ranks are likelier to be right.
    Those of answers are the match and the candidate's rank. Of recycled answers, the matches are: two tokens and the
    position, one token and the position, two tokens, one token, the position.
    """
    by_rank = [0.3**rank for rank in range(FOLLOWERS)]

    def answers(best: float) -> list[float]:
        return [best * 0.45**rank for rank in range(settings.candidates)]

    text = [min(0.9, 0.3 + 0.1 * length) * share for length in TEXT_LENGTHS for share in by_rank]
    return {
        "suffix": text,
        "shared": [*text, *answers(0.3)],
        "window": [(0.15 + 0.1 * length) * share for length in WINDOW_LENGTHS for share in by_rank],
        "recycled": [prior for best in (0.6, 0.5, 0.5, 0.4, 0.2) for prior in answers(best)],
        "index": [*answers(0.3), *answers(0.2)],
        "corpus": [min(0.7, 0.1 + 0.1 * length) * share for length in CORPUS_LENGTHS for share in by_rank],
    }


class Kinds:
    """Numbers the kinds of all sources, whether in use or not. The kinds of one source are consecutive.

    Sources often agree, and where they do not, the surer one is mostly right. So each kind is there twice: a list of
    candidates has its own kinds if no other list for the same path is surer of its best candidate, and else its
    rivalled kinds, whose numbers are larger by `num_own`.

    first: the number of each source's first kind, by the source's name. sources: the source's name for each kind.
    priors: for each kind, the probability assumed for its candidates before any has been seen. num_own: kinds that are
    not rivalled.
    """

    def __init__(self, settings: DraftSettings, more: Mapping[str, Sequence[float]] | None = None):
        """more: priors of sources that the user has written, by their names."""
        self.first: dict[str, int] = {}
        self.sources: list[str] = []
        self.priors: list[float] = []
        for name, priors in {**priors_of_sources(settings), **(more or {})}.items():
            self.first[name] = len(self.priors)
            self.sources += [name] * len(priors)
            self.priors += priors
        self.num_own = len(self.priors)
        self.sources *= 2
        self.priors += [RIVALLED * prior for prior in self.priors]


class Estimates:
    """The probability that a candidate is right, for each kind of candidate (see Kinds).

    probabilities: that of each kind. hits, trials: what they are made of.
    """

    def __init__(self, priors: Sequence[float]):
        self.probabilities = array("d", priors)
        self.hits = array("d", (PRIOR_TRIALS * prior for prior in priors))
        self.trials = array("d", [PRIOR_TRIALS] * len(priors))

    def begin(self, hits: Sequence[float], trials: Sequence[float]) -> None:
        """Takes over what was counted before, of the same kinds."""
        for kind, (of_kind, number) in enumerate(zip(hits, trials, strict=True)):
            self.hits[kind], self.trials[kind], self.probabilities[kind] = of_kind, number, of_kind / number

    def learn(self, first: int, candidates: Sequence[int], right: int, rival: int | None = None) -> None:
        """Counts candidates of the kinds `first`, `first` + 1, ... that were proposed where `right` followed.

        rival: the best candidate of a list that was surer; it counts for that list alone.
        """
        probabilities, all_hits, all_trials = self.probabilities, self.hits, self.trials
        for kind, candidate in enumerate(candidates, first):
            if candidate == rival:
                continue
            all_trials[kind] = trials = DECAY * all_trials[kind] + 1
            all_hits[kind] = hits = DECAY * all_hits[kind] + (candidate == right)
            probabilities[kind] = hits / trials


# The share of the time that may be lost for good.
LARGEST_SHARE_OF_TIME = 0.01
# What a token is worth: a plain step, and what may be lost with it.
GAIN_OF_TOKEN = 1 + LARGEST_SHARE_OF_TIME
# What may be lost at first, before any time has passed. A step may then lose `OVERDRAFT` more than there is.
FUNDS_AT_FIRST, OVERDRAFT = 0.25, 0.5
# The most that earlier gains allow to be lost: an easy text does not pay for a long hard one.
MOST_FUNDS = 3.0
# After a pause of plain steps, speculation begins with this much, so that its sources can learn for a few steps.
FUNDS_AFTER_PAUSE = 0.3
# The share of the time of a pause that steps may take for watching. It is a quarter of what may be lost, since watching
# after plain steps costs more than what is known of it: the sources must then learn the tokens of these steps.
SHARE_OF_WATCHING = LARGEST_SHARE_OF_TIME / 4
# A pause ends early once drafts that were only watched would have gained this much.
ENOUGH_WATCHED = 1.0


class Effort(Enum):
    """What a step does beside computing the next token.

    A speculative step has drafts or a window. A watching step has one row like a plain one, but asks for candidates, so
    that the sources learn, and says whether the likeliest draft would have been right. A plain step asks and learns
    nothing.
    """

    plain = 0
    watch = 1
    speculate = 2


# The same by other names: to look one up in its class takes a call.
PLAIN, WATCH, SPECULATE = Effort.plain, Effort.watch, Effort.speculate


class SpeculationAccount:
    """Says for all requests of one kind what a step may do: speculation pauses when it has lost too much.

    All amounts are in plain steps, which is the time that plain steps need for the same tokens.
    effort: what a step may do. plain_s: seconds of a plain step. funds: how much may be lost now, in plain steps. What
    steps gain is added, what they lose is subtracted, and every token adds `LARGEST_SHARE_OF_TIME`. Below 0,
    speculation pauses. Steps of a pause watch as often as costs `SHARE_OF_WATCHING`, and so does the one
    after one of these whose draft would have been right; the others are plain. A pause also ends when drafts that were
    watched would have gained enough.
    """

    def __init__(self, cost: StepCost):
        self.funds = FUNDS_AT_FIRST
        self.effort = SPECULATE
        # What watched drafts would have gained lately.
        self._watched = 0.0
        # Steps of a pause since the last one that watched, and whether the next one watches as its draft was right.
        self._unwatched, self._again = 0, False
        self.update(cost)

    def update(self, cost: StepCost) -> None:
        """Decides by the cost's present times from now on."""
        self.plain_s = cost.plain_s
        watching = cost.step_s(1, 0) / cost.plain_s - 1
        # Steps of a pause of which one watches.
        self._period = max(1, math.ceil(watching / SHARE_OF_WATCHING))
        # What one draft costs.
        self._draft = cost.step_s(min(2, cost.most_rows), 1) / cost.plain_s - 1
        # There is nothing to lose where every step costs the same.
        self._is_bounded = not cost.is_flat

    @property
    def limit_s(self) -> float:
        """The most seconds that a speculative step may take now."""
        return self._limit_s(self.funds)

    @property
    def loss_s(self) -> float:
        """Seconds of a plain step, which losses are measured in; infinite where there is nothing to lose."""
        return self.plain_s if self._is_bounded else math.inf

    def limit_after(self, tokens: int, seconds: float) -> float | None:
        """What `limit_s` is going to be once a speculative step was noted (see `took_step`), before it is noted.

        None if the step after it may not speculate.
        """
        funds = min(MOST_FUNDS, self.funds + self._gain(tokens, seconds))
        return None if self._is_bounded and funds < 0 else self._limit_s(funds)

    def _limit_s(self, funds: float) -> float:
        return (1 + max(0.0, funds) + OVERDRAFT) * self.loss_s

    def _gain(self, tokens: int, seconds: float) -> float:
        """What a step with drafts adds to the funds, in plain steps."""
        return GAIN_OF_TOKEN * tokens - seconds / self.plain_s

    def took_plain_step(self) -> None:
        self._add(LARGEST_SHARE_OF_TIME)

    def took_step(self, tokens: int, seconds: float) -> None:
        """Notes the tokens that a watching or speculative step yielded, and its modelled seconds."""
        self._add(self._gain(tokens, seconds))

    def watched(self, probability: float, is_right: bool) -> None:
        """Notes whether the likeliest draft of a watching step was right. probability: what was expected of it."""
        if probability <= self._draft:  # it would not have been tried
            return
        self._watched = max(0.0, self._watched + is_right - self._draft)
        self._again = bool(is_right and not self._unwatched)
        if self._watched >= ENOUGH_WATCHED:
            self._watched, self._again, self.effort = 0.0, False, SPECULATE
            self.funds = max(self.funds, FUNDS_AFTER_PAUSE)

    def _add(self, gain: float) -> None:
        self.funds = min(MOST_FUNDS, self.funds + gain)
        enough = FUNDS_AFTER_PAUSE if self.effort is not SPECULATE and self._period > 1 else 0.0
        if not self._is_bounded or self.funds >= enough:
            self.effort = SPECULATE
            return
        self._unwatched = (self._unwatched + 1) % self._period
        self.effort = WATCH if self._again or not self._unwatched else PLAIN
        self._again = False

    def state(self) -> list[object]:
        """The whole state, for checksums."""
        return [self.funds, self.effort is not SPECULATE, self._watched, self._unwatched, self._again]


# Steps of a trial. A window needs some of them to fill before it yields anything.
TRIAL_STEPS = 16
# Steps for which the best size is used before the next choice.
STEPS_BETWEEN_CHOICES = 4
# Largest share of the time that trials of one size may waste if its window yields nothing, where nothing else is said.
WINDOW_SHARE_OF_TIME = 0.007
# Least number of steps between two trials of a size, even if it costs nothing.
LEAST_STEPS_BETWEEN_TRIALS = 64
# Number of steps of a size after which a step's result counts about a third as much.
MEMORY_STEPS = 128.0
# The first choice is the largest window with which a step takes at most this many times as long as a plain step.
LARGEST_SLOWDOWN_AT_FIRST = 1.1


@dataclass
class Size:
    """A number of columns of the window and how it has done.

    steps_between_trials: least number of steps between two trials of it. tokens, seconds: what its steps have yielded
    and their modelled time, older steps counting less. last_used: number of the last step that used it.
    """

    columns: int
    steps_between_trials: int
    tokens: float = 0.0
    seconds: float = 0.0
    last_used: int = 0

    @property
    def speed(self) -> float:
        """Tokens per modelled second; 0 if the size has not been tried."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class WindowTrial:
    """A size chosen for several steps of one request, as its window needs some of them to fill.

    num_left: how many of the steps are left. following: the trial after this one, which is chosen a step before this
    one's end, so that the next step can be planned together with the learning from the last one.
    """

    size: Size
    num_left: int
    following: WindowTrial | None = None

    @property
    def next(self) -> WindowTrial | None:
        """The trial of the step after the present one; None if it has not been chosen."""
        return self if self.num_left > 1 else self.following


class WindowChoice:
    """Chooses the window's number of columns. Requests of the same kind share it and learn from each other's trials.

    The size with the most tokens per modelled second is used; the others are tried now and then for some steps. The
    more time a trial costs, the rarer it is.
    """

    def __init__(
        self,
        columns: Sequence[int],
        levels: int,
        cost: StepCost,
        has_rivals: bool = True,
        share_of_time: float = WINDOW_SHARE_OF_TIME,
    ):
        """columns: numbers of columns to choose from, ascending from 0. levels: levels of the window, N-1. cost:
        seconds of a step by its rows. has_rivals: whether there are drafts that could use the window's rows.
        share_of_time: the most that trials of one size may waste.
        """
        self.levels, self._has_rivals, self._share_of_time = levels, has_rivals, share_of_time
        self.sizes = [Size(number, LEAST_STEPS_BETWEEN_TRIALS) for number in columns]
        costs = self.update(cost)
        self._best = max(
            (size for size, cost in zip(self.sizes, costs, strict=True) if cost <= LARGEST_SLOWDOWN_AT_FIRST - 1),
            key=lambda size: size.columns,
        )
        self._num_steps = 0

    def update(self, cost: StepCost) -> list[float]:
        """Spaces trials by the cost's present times from now on. Returns the share of a step that each size costs."""
        columns, levels = [size.columns for size in self.sizes], self.levels
        seconds = [cost.step_s(1 + number * levels, number and number + levels - 1) for number in columns]
        costs = [of_size / seconds[0] - 1 for of_size in seconds]
        if self._has_rivals and cost.is_flat:
            # All steps cost the same, for example because their number of rows is given. A window then costs the rows
            # that drafts lose.
            costs = [number * levels / cost.most_rows for number in columns]
        for size, share in zip(self.sizes, costs, strict=True):
            trials = round(TRIAL_STEPS * share / self._share_of_time)
            size.steps_between_trials = max(LEAST_STEPS_BETWEEN_TRIALS, trials)
        return costs

    def choose(self) -> WindowTrial:
        """Chooses a size for a request's next steps: the best one so far, unless a trial of another is due."""
        self._best = max(self.sizes, key=lambda size: (size.speed, size is self._best))
        due = [size for size in self.sizes if self._num_steps - size.last_used >= self._steps_between_trials(size)]
        if not due:
            return WindowTrial(self._best, STEPS_BETWEEN_CHOICES)
        tried = min(due, key=lambda size: size.last_used)
        tried.last_used = self._num_steps  # so that no other request tries it at the same time
        return WindowTrial(tried, TRIAL_STEPS)

    def _steps_between_trials(self, size: Size) -> float:
        """Steps to wait between two trials of a size: the slower it is than the best one, the more of them."""
        if size is self._best:
            return float("inf")
        behind = 1 - size.speed / self._best.speed if size.speed else 0.0
        return max(size.steps_between_trials, TRIAL_STEPS * behind / self._share_of_time)

    def learn(self, trial: WindowTrial, tokens: int, seconds: float) -> None:
        """Notes the tokens that a step of a trial yielded and its modelled seconds."""
        self._num_steps += 1
        trial.num_left -= 1
        size, keep = trial.size, 1 - 1 / MEMORY_STEPS
        size.last_used = self._num_steps
        size.tokens = keep * size.tokens + tokens
        size.seconds = keep * size.seconds + seconds
        if trial.num_left == 1:
            trial.following = self.choose()

    def state(self) -> list[object]:
        """The whole state, for checksums."""
        return [self._best.columns, self._num_steps, *self.sizes]


@dataclass(frozen=True)
class DraftProfile:
    """What was learnt from requests with the same settings and a similar temperature, in steps of about as many
    sequences. What drafts are worth is the same for any number of them.
    """

    kinds: Kinds
    cost: StepCost
    estimates: Estimates
    windows: WindowChoice
    account: SpeculationAccount
