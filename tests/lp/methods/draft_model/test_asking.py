"""When a second model is asked: by what its drafts have gained in earlier texts, and by what reading a text costs."""

from __future__ import annotations

import pytest

from lp.methods.draft_model.asking import LIKELY_TOKENS, TRIAL_SHARE, Asking, Experience
from lp.methods.draft_model.growth import Candidates, Growth
from lp.step_cost import StepCost, StepTimes

# Each row takes a twentieth of a plain step.
TIMES = StepTimes((1, 2, 65), (0.100, 0.105, 0.420))
PROMPT, NUM_TOKENS = 200, 40


class Text:
    """A sequence whose second model is right with some of its drafts. num_rounds: all that there were."""

    def __init__(self, experience: Experience, is_right: bool, relative_cost: float, prompt: int = PROMPT):
        self.experience, self.is_right, self.relative_cost = experience, is_right, relative_cost
        self.asking, self.num_tokens = Asking(experience, StepCost(TIMES, 16)), prompt
        self.num_rounds = 0

    def step(self, wanted: int) -> int:
        """Returns the tokens that it yields. One draft at most is made; the next token is 7."""
        growth = Growth(1, self.experience.calibration, 1, 8, self.relative_cost, is_chain=False)
        self.asking.limit(growth, self.num_tokens, wanted)
        while nodes := growth.choose():
            growth.took_round(nodes)
            for number in nodes:
                growth.add(number, Candidates([7 if self.is_right else 8], [0.9]))
        growth.learn(0, 7)
        self.num_rounds += growth.num_rounds
        num_added = len(growth.nodes) - 1
        num_right = num_added if self.is_right else 0
        self.asking.learn(1 + num_right, num_right, 1 + num_added, num_added)
        self.num_tokens += 1 + num_right
        return 1 + num_right

    def finish(self, num_tokens: int = NUM_TOKENS) -> int:
        """Returns the number of rounds of the whole text."""
        left = num_tokens
        while left > 0:
            left -= self.step(left)
        return self.num_rounds


def rounds_of_texts(number: int, is_right: bool, relative_cost: float, prompt: int = PROMPT) -> list[int]:
    experience = Experience()
    return [Text(experience, is_right, relative_cost, prompt).finish() for _ in range(number)]


def test_a_model_that_is_right_is_asked_in_every_text() -> None:
    assert min(rounds_of_texts(20, True, 0.3)) >= NUM_TOKENS // 2


def test_texts_are_not_read_for_a_model_that_is_wrong() -> None:
    """Reading a text takes as long as three steps, so a hundredth of the time allows it every eighth text at most."""
    rounds = rounds_of_texts(60, False, 0.3)
    assert sum(rounds[:2]) > 0, "nothing is known of it at first"
    assert sum(count > 0 for count in rounds[10:]) <= 50 / 8


def test_one_that_is_wrong_costs_about_a_hundredth_of_the_time() -> None:
    experience, num_steps, spent = Experience(), 0, 0.0
    for _ in range(300):
        text = Text(experience, False, 0.3)
        rounds = text.finish()
        num_steps += NUM_TOKENS
        spent += bool(rounds) * 0.3 * (PROMPT - 1) / 20 + 0.3 * rounds
    assert spent / num_steps < 2 * TRIAL_SHARE


def test_one_that_comes_to_be_right_is_asked_again() -> None:
    experience = Experience()
    for _ in range(30):
        Text(experience, False, 0.1).finish()
    rounds = [Text(experience, True, 0.1).finish(400) for _ in range(20)]
    assert rounds[0] < 100 < rounds[-1]


def test_a_text_of_which_little_is_wanted_is_not_read() -> None:
    experience = Experience()
    Text(experience, True, 0.3).finish()
    assert Text(experience, True, 0.3, prompt=600).finish(4) == 0
    assert Text(experience, True, 0.3, prompt=600).finish(400) > 100


def test_a_long_text_costs_no_more_once_it_is_read() -> None:
    """Only what has come since counts."""
    text = Text(Experience(), True, 0.3, prompt=300)
    assert text.step(100) == 2
    assert [text.step(4) for _ in range(3)] == [2, 2, 2]


def test_what_is_wanted_counts_up_to_a_likely_length() -> None:
    worth = Experience().worth
    price = 0.5 * LIKELY_TOKENS
    assert worth.repays(price, LIKELY_TOKENS) and worth.repays(price, 10**6)
    assert not worth.repays(price, LIKELY_TOKENS - 1) and not worth.repays(price + 1, 10**6)


def test_a_text_is_read_to_its_end_once_that_has_begun() -> None:
    """Where other requests wait, reading takes several steps, which have no rounds."""
    experience = Experience()
    experience.worth.trials = 4.0
    experience.worth.learn(1000, -100.0)
    asking = Asking(experience, StepCost(TIMES, 16))
    for num_tokens in (PROMPT, PROMPT + 1):
        growth = Growth(1, experience.calibration, 4, 8, 0.3, is_chain=False)
        asking.limit(growth, num_tokens, 100)
        assert growth.choose()
        asking.learn(1, 0, 1, 0)
        experience.worth.trials = 0.0


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_number_of_rows_that_is_given_is_grown_whatever_it_costs(rounds: int) -> None:
    experience = Experience()
    experience.worth.learn(1000, -1000.0)
    before = experience.worth.state()
    growth = Growth(1, experience.calibration, 4, 8, 0.0, is_chain=False)
    asking = Asking(experience, StepCost(TIMES, 16))
    asking.limit(growth, 10**6, 1)
    assert growth.max_depth == 4 and growth.choose()
    growth.num_rounds = rounds
    asking.learn(1, 0, 1, 0)
    assert experience.worth.state() == before
