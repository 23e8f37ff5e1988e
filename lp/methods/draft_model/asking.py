"""Decides for each step of a sequence whether a second model is asked for drafts.

A second model must read a text before it drafts, which takes as long as many of its drafts gain. So what it has been
worth is learnt from all requests: a text is read if its drafts are likely to gain what that costs. Where they are not,
a hundredth of the time is spent on trials, to notice when they are. No decision depends on a clock or on a rank.
"""

from __future__ import annotations

from lp.decoder import AheadYields, StepYield
from lp.methods.draft_model.calibration import Calibration
from lp.methods.draft_model.growth import Growth
from lp.step_cost import StepCost

# The share of the time that goes into trials where drafts do not pay.
TRIAL_SHARE = 0.01
# Before anything is known, each token is believed to gain so much, in plain steps, as if so many tokens had shown it.
PRIOR_GAIN, PRIOR_TOKENS = 0.5, 32.0
# Texts often end long before they may: no more tokens than these count as those that a text is going to have.
LIKELY_TOKENS = 128
# At first text is believed to be decoded plainly, as if so many tokens had shown it. After so many, earlier ones count
# half.
PRIOR_PACE_TOKENS, MOST_PACE_TOKENS = 8.0, 256.0
# Tokens after which earlier ones count half.
MOST_TOKENS = 1024.0
# The tokens and rows that steps are assumed to have at first, if others draft ahead of them and if not, as if so many
# steps had shown it. After so many, earlier ones count half.
PRIOR_AHEAD, PRIOR_OTHERS, PRIOR_STEPS, MOST_STEPS = StepYield(2.0, 4.0), StepYield(1.0, 1.0), 16.0, 64.0


class FadingMean:
    """How much of something there is for each token, or for each step, on average. Earlier ones count less and less."""

    def __init__(self, prior: float, prior_number: float, most: float):
        """prior: what is believed at first, as if so many tokens or steps had shown it. most: of them, after which
        earlier ones count half.
        """
        self._amount, self._number, self._most = prior * prior_number, prior_number, most

    @property
    def mean(self) -> float:
        return self._amount / self._number

    def learn(self, number: float, amount: float) -> None:
        self._number, self._amount = self._number + number, self._amount + amount
        if self._number > self._most:
            self._number, self._amount = self._number / 2, self._amount / 2

    def state(self) -> tuple[float, ...]:
        """All that is known, for checksums."""
        return self._amount, self._number


class Worth:
    """What drafts of a second model have gained, in plain steps. trials: what may be spent on trials now."""

    def __init__(self) -> None:
        self.trials = 0.0
        self._gain = FadingMean(PRIOR_GAIN, PRIOR_TOKENS, MOST_TOKENS)

    def repays(self, price: float, wanted: int) -> bool:
        """Whether drafts are likely to gain what reading a text costs. wanted: tokens that it may go on for."""
        return price <= max(0.0, self._gain.mean) * min(wanted, LIKELY_TOKENS)

    def learn(self, num_tokens: int, gain: float) -> None:
        """Learns from a step for which the second model could be asked. gain: what its drafts saved less their cost."""
        self._gain.learn(num_tokens, gain)

    def state(self) -> tuple[float, ...]:
        """All that is known, for checksums."""
        return self.trials, *self._gain.state()


class AheadWorth:
    """What steps yield that others draft ahead of, and what all others do."""

    def __init__(self) -> None:
        self._ahead = [FadingMean(prior, PRIOR_STEPS, MOST_STEPS) for prior in PRIOR_AHEAD]
        self._others = [FadingMean(prior, PRIOR_STEPS, MOST_STEPS) for prior in PRIOR_OTHERS]
        self._longer = FadingMean(0.0, PRIOR_STEPS, MOST_STEPS)

    @property
    def yields(self) -> AheadYields:
        ahead, others = ([one.mean for one in found] for found in (self._ahead, self._others))
        return AheadYields(StepYield(*ahead), StepYield(*others), self._longer.mean)

    def learn(self, num_tokens: int, num_rows: int, longer: float | None) -> None:
        """Learns from a step. longer: see AheadYields; None if no rank drafted ahead of it."""
        for known, amount in zip(self._others if longer is None else self._ahead, (num_tokens, num_rows), strict=True):
            known.learn(1, amount)
        if longer is not None:
            self._longer.learn(1, longer)

    def state(self) -> tuple[float, ...]:
        """All that is known, for checksums."""
        return tuple(number for one in (*self._ahead, *self._others, self._longer) for number in one.state())


class Experience:
    """What requests learn together about the drafts of a second model. ahead: about those made ahead of steps.
    plain_steps: the time that a token takes, drafts included, in plain steps.
    """

    def __init__(self) -> None:
        self.calibration, self.worth, self.ahead = Calibration(), Worth(), AheadWorth()
        self.plain_steps = FadingMean(1.0, PRIOR_PACE_TOKENS, MOST_PACE_TOKENS)


class Asking:
    """The decisions for one sequence."""

    def __init__(self, experience: Experience, cost: StepCost, reads_text: bool = True, is_asked: bool = True):
        """cost: of the model's steps. reads_text: whether the second model must read a text before it drafts. is_asked:
        whether it drafts before a step at all; if not, its drafts cost no time.
        """
        self._worth, self._plain_steps = experience.worth, experience.plain_steps
        self._cost, self._reads_text, self._is_asked = cost, reads_text, is_asked
        self._growth: Growth
        self._price = 0.0
        # The sequence's tokens, how many of them the second model has read, and whether it has read some of the others.
        self._num_tokens, self._num_read, self._is_reading = 0, 0, False
        self._is_trial = False

    def limit(self, growth: Growth, num_tokens: int, wanted: int) -> None:
        """Leaves a growth without depth if the second model is not to be asked; makes it grow if that is to be tried.

        num_tokens: of the sequence. wanted: see Decoder.plan.
        """
        self._growth, self._num_tokens = growth, num_tokens
        growth.pace, self._is_trial = 1.0 / self._plain_steps.mean, False
        if not growth.round_cost or not self._is_asked:  # it is asked whatever it costs, or never
            return
        self._price = self._price_of(max(0, num_tokens - 1 - self._num_read)) if self._reads_text else 0.0
        may_try = self._is_reading or self._worth.trials >= self._price + growth.round_cost
        if not may_try and not self._worth.repays(self._price, wanted):
            growth.max_depth = 0
        elif may_try and not growth.choose():
            self._is_trial = growth.entice()

    def _price_of(self, num_tokens: int) -> float:
        """What it costs to read so many tokens beside the first round, in plain steps."""
        more_s = self._cost.part_s(1 + num_tokens) - self._cost.part_s(1)
        return self._growth.round_cost * more_s / self._cost.plain_s

    def learn(self, num_tokens: int, num_right: int, num_rows: int, num_added: int) -> None:
        """Learns what the step has yielded.

        num_tokens: that were accepted. num_right: of the second model's drafts, those that were. num_rows: of the tree,
        `num_added` of which are the second model's drafts.
        """
        growth, worth, cost = self._growth, self._worth, self._cost
        if not growth.round_cost:
            return
        step_s = cost.step_s(num_rows, 0)
        self._plain_steps.learn(num_tokens, growth.spent + step_s / cost.plain_s)
        if not self._is_asked:
            return
        worth.trials += TRIAL_SHARE * step_s / cost.plain_s
        self._is_reading = not growth.num_rounds and bool(growth.choose())
        if not growth.max_depth:
            return
        rows_s = step_s - cost.step_s(num_rows - num_added, 0)
        worth.learn(num_tokens, num_right - growth.spent - rows_s / cost.plain_s)
        if growth.num_rounds:
            self._num_read = self._num_tokens + num_right
            if self._is_trial:
                worth.trials = min(0.0, worth.trials - growth.spent - self._price)

    def state(self) -> tuple[object, ...]:
        """The whole state, for checksums."""
        return self._worth.state(), self._plain_steps.state(), self._num_read, self._is_reading
