"""decode=auto against plain decoding in modelled time, on one part and on several that share steps or rest.

The machine here knows the true partition of each tree and the tokens that each part lacks; the decoder only estimates
them from the step times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from lp.drafting.history import DraftHistory
from lp.methods.auto.method import Auto
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.step_cost import DEPTH, Extras, StepCost, StepTimes
from lp.tree import TokenTree
from parallel.runners.shares import KnownTokens
from parallel.runners.sharing import Sharing
from tests.lp.decoders import make_decoder
from tests.lp.drafting.rule_models import CANDIDATES, PROMPT, Model, answers, counting, unguessable
from tests.slow import exhaustive_except, slow_except

ROWS = (1, 2, 8, 16, 32, 64, 128)
CPU = (0.041, 0.056, 0.066, 0.080, 0.111, 0.165, 0.279)
CURVES = {
    "memory-bound": (0.0100, 0.0100, 0.0101, 0.0101, 0.0102, 0.0102, 0.0110),
    "a CPU": CPU,
    "a small model": (0.0046, 0.0075, 0.0094, 0.0108, 0.0143, 0.0206, 0.0339),
    "no row is free": tuple(0.010 * rows for rows in ROWS),
}
EXTRAS = {
    "a quick host": Extras(),
    "a slow host": Extras(2e-4, 2e-5, 2e-4, 1.5e-4, -5e-5, 2e-4),
}


def branching(path: tuple[int, ...], position: int) -> list[int]:
    """A model whose text may go on in a few known ways after each token, so that wide trees find the right one."""
    followers = [(7 * path[-1] + 3 * number + 1) % 60 for number in range(CANDIDATES)]
    right = random.Random(f"{path[-2:]} {position}").choice([0, 0, 0, 1, 1, 2])
    return [followers[right], *(token for number, token in enumerate(followers) if number != right)]


@dataclass
class Machine:
    """Counts the seconds that steps take on so many parts, which share each of them or leave it to one.

    times: the true ones. seconds: of all steps. is_shared: one entry for each step.
    """

    times: StepTimes
    temperature: float = 0.0
    seconds: float = 0.0
    is_shared: list[bool] = field(default_factory=list)
    plain: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sharing, self.known = Sharing(), KnownTokens(self.times.num_parts)
        self.sharing.use_times(self.times)
        self.shared, self.alone = self.times.by_part(), self.times.alone
        self.is_sampled = self.temperature > 0

    def take(self, tree: TokenTree, tokens: list[int], is_plain: bool) -> bool:
        """Whether the step was shared."""
        sequence = TokenSequence("text", tokens, len(tokens), Sampling(self.temperature, seed=0))
        numbers = list(self.known.count(tokens))
        (shares,) = self.sharing.share([StepInput.of(sequence, tree)], [numbers])
        self.known.note(tree, len(tokens), shares)
        is_shared = len(shares.rows) == len(numbers)
        first = not self.is_shared  # the prompt's time is nobody's gain or loss
        rows = [len(part) + (0 if first else len(tokens) - 1 - numbers[one]) for one, part in shares.rows.items()]
        curve = self.shared if is_shared or self.alone is None else self.alone
        extras = self.times.extras
        self.seconds += curve.at(max(rows))
        if is_plain:
            self.seconds += extras.sampled_plain if self.is_sampled else extras.greedy_plain
        else:
            self.seconds += extras.host_step + extras.host_row * len(tree)
            self.seconds += self.is_sampled * (extras.sampled_step + extras.sampled_row * max(rows))
        self.is_shared.append(is_shared)
        self.plain.append(is_plain)
        return is_shared

    def plain_s(self, num_tokens: int) -> float:
        """Seconds of plain decoding on one part."""
        return num_tokens * StepCost(self.times.for_parts(1), 1, self.is_sampled).plain_s


def decode(
    model: Model,
    num_tokens: int,
    times: StepTimes,
    history: DraftHistory | None = None,
    temperature: float = 0.0,
    prompt: Sequence[int] = PROMPT,
    step: Callable[[TokenTree, bool], None] = lambda tree, is_shared: None,
) -> Machine:
    """Decodes on a machine whose true times are `times`; all tokens are the model's."""
    decoder = make_decoder(Auto(), prompt, 0, temperature, history or DraftHistory(times))
    tokens, machine = list(prompt), Machine(times, temperature)
    while left := num_tokens - (len(tokens) - len(prompt)):
        tree = decoder.plan(tokens, room=left + 20, wanted=left)
        step(tree, machine.take(tree, tokens, not decoder.num_candidates))
        accepted, _ = decoder.commit(tokens, answers(model, tree, tokens, decoder.num_candidates))
        tokens += accepted.tokens
    return machine


def on_parts(seconds: Sequence[float], num_parts: int, hindrance: float, exchange_s: float = 1e-4) -> StepTimes:
    """Step times of parts that slow each other down by `hindrance` where a step is bound by reading the weights.

    The measured curve is by the rows of whole trees, which `by_part` turns into those of the largest part.
    """
    alone = StepTimes(ROWS, tuple(second + exchange_s for second in seconds))
    curve, added = StepTimes(ROWS, tuple(seconds)), seconds[0] * (hindrance - 1) + exchange_s
    largest = [min(rows, 1 + DEPTH * math.ceil(math.ceil((rows - 1) / DEPTH) / num_parts)) for rows in ROWS]
    return StepTimes(ROWS, tuple(curve.at(rows) + added for rows in largest), num_parts, alone)


GROUPS = {
    "two that hinder each other": on_parts(CPU, 2, 1.28),
    "four that hinder each other": on_parts(CPU, 4, 1.4),
    "two with memory of their own": on_parts(CPU, 2, 1.0, exchange_s=0.0),
    "four with memory of their own": on_parts(CURVES["memory-bound"], 4, 1.0),
}
ALONE = {f"{curve}, {host}": StepTimes(ROWS, CURVES[curve], extras=EXTRAS[host]) for curve in CURVES for host in EXTRAS}


@pytest.mark.parametrize("temperature", exhaustive_except([0.0, 0.8, 1.0], 0.0, quick=[0.8]))
@pytest.mark.parametrize("name", [*ALONE, *GROUPS])
def test_at_most_two_percent_are_lost_on_text_that_cannot_be_guessed(name: str, temperature: float) -> None:
    machine = decode(unguessable, 600, {**ALONE, **GROUPS}[name], temperature=temperature)
    assert machine.plain_s(600) / machine.seconds > 0.98


@pytest.mark.parametrize("name", ALONE)
def test_the_first_text_of_an_engine_loses_little(name: str) -> None:
    machine = decode(unguessable, 64, ALONE[name])
    assert machine.plain_s(64) / machine.seconds > 0.975


@pytest.mark.parametrize("name", [*ALONE, *GROUPS])
def test_many_short_texts_lose_at_most_two_percent(name: str) -> None:
    times = {**ALONE, **GROUPS}[name]
    history, seconds, plain = DraftHistory(times), 0.0, 0.0
    rng = random.Random(1)
    for _ in range(10):
        prompt = [rng.randrange(1000) for _ in range(20)]
        machine = decode(unguessable, 64, times, history, prompt=prompt)
        seconds, plain = seconds + machine.seconds, plain + machine.plain_s(64)
    assert plain / seconds > 0.98


@pytest.mark.parametrize("name", [*ALONE, *GROUPS])
def test_text_that_can_be_guessed_is_faster(name: str) -> None:
    if name.startswith("no row is free"):
        pytest.skip("a second row doubles the time")
    machine = decode(counting, 400, {**ALONE, **GROUPS}[name])
    assert machine.plain_s(400) / machine.seconds > 1.5


@pytest.mark.parametrize("name", ["two that hinder each other", "four that hinder each other"])
def test_ranks_rest_where_a_step_of_one_row_is_slower_shared(name: str) -> None:
    machine = decode(unguessable, 300, GROUPS[name])
    assert machine.is_shared[0] and machine.is_shared.count(False) > 280


def test_ranks_with_memory_of_their_own_do_not_rest() -> None:
    assert all(decode(counting, 200, GROUPS["two with memory of their own"]).is_shared)


@pytest.mark.parametrize("name", GROUPS)
def test_ranks_rest_exactly_where_the_curve_says_so(name: str) -> None:
    """The tree of each step decides, as long as the ranks that rested lack nothing."""
    times = GROUPS[name]
    cost, compared, lacking = StepCost(times, 128), list[bool](), False

    def compare(tree: TokenTree, is_shared: bool) -> None:
        nonlocal lacking
        if not lacking and compared:
            depth = int(tree.depths.max())
            shared_s, alone_s = cost.shared_s(len(tree), depth), cost.alone_s(len(tree))
            assert is_shared == (shared_s <= alone_s + cost.catch_up_s(1))
        compared.append(is_shared)
        lacking = not is_shared

    decode(branching, 300, times, step=compare)
    assert any(compared[1:])


@pytest.mark.parametrize(
    ("name", "gain"),
    slow_except(
        [("two that hinder each other", 0.96), ("two with memory of their own", 1.1)],
        ("two that hinder each other", 0.96),
    ),
)
def test_several_ranks_are_no_slower_than_one(name: str, gain: float) -> None:
    """Over several texts, since a single one is faster or slower by some percent for little reason."""
    times, prompts = GROUPS[name], [[*PROMPT, token] for token in range(6)]
    one = sum(decode(branching, 400, times.for_parts(1), prompt=prompt).seconds for prompt in prompts)
    two = sum(decode(branching, 400, times, prompt=prompt).seconds for prompt in prompts)
    assert one / two > gain
