"""Scenarios have the requests that were asked for, other prompts in every round, and prompts of the right length."""

from __future__ import annotations

import pytest

from benchmarks.load.arrivals import Arrival
from benchmarks.load.prompts import PromptDeck, longest_tokens
from benchmarks.load.scenarios import ClosedLoop, Intrusion, OpenLoop, Plan
from benchmarks.shared.categories import read_categories
from tests.launch.server.checkpoint import make_tokenizer

TOKENIZER = make_tokenizer(None)


def deck(seed: int = 0, longest: int = 1000) -> PromptDeck:
    return PromptDeck(read_categories(None, 1000), TOKENIZER, longest, seed)


def test_a_deck_is_shuffled_by_its_seed_and_repeats_only_when_it_is_empty():
    one, same, other = deck(), deck(), deck(seed=1)
    number = one.num_prompts
    drawn = [request.prompt for request in one.draw_many(2 * number, 8)]
    assert drawn == [request.prompt for request in same.draw_many(2 * number, 8)]
    assert drawn != [request.prompt for request in other.draw_many(2 * number, 8)]
    assert len(set(drawn[:number])) == number and sorted(drawn[:number]) == sorted(drawn[number:])
    assert one.num_drawn == 2 * number


def test_long_prompts_are_left_out():
    assert 0 < deck(longest=300).num_prompts < deck().num_prompts
    with pytest.raises(ValueError, match="--longest-prompt"):
        deck(longest=1)


@pytest.mark.parametrize("num_tokens", [1, 33, 250, 1500])
def test_a_prompt_has_the_wanted_length(num_tokens: int):
    found = deck().draw_of_length(num_tokens, 5)
    assert abs(len(TOKENIZER.encode(found.prompt)) - num_tokens) <= 2
    assert found.max_tokens == 5


def test_loops_and_a_trace():
    trace = [Arrival(0.0, 20, 3), Arrival(1.5, 40, 6)]
    plan = Plan(streams=[1, 4], rates=[2.0], trace=trace, num_requests=6, max_new_tokens=9)
    one, four, open_loop, replay = plan.make(deck(), seed=5)
    assert [(scenario.name, scenario.load) for scenario in (one, four)] == [
        ("closed loop, 1 stream", 1),
        ("closed loop, 4 streams", 4),
    ]
    assert len(one.requests) == 6 and len(four.requests) == 8 and four.most_streams == 4
    (phase,) = open_loop.phases.values()
    assert isinstance(phase, OpenLoop) and len(phase.due_s) == 6 and phase.due_s[0] == 0.0
    (phase,) = replay.phases.values()
    assert isinstance(phase, OpenLoop) and phase.due_s == [0.0, 1.5]
    assert [request.max_tokens for request in replay.requests] == [3, 6]
    assert abs(longest_tokens(replay.requests, TOKENIZER) - 46) <= 2


def test_a_burst_and_a_pause():
    plan = Plan(burst=(1, 16, 1), pause=300, max_new_tokens=9)
    burst, pause = plan.make(deck(), seed=0)
    streams = [phase.num_streams for phase in burst.phases.values() if isinstance(phase, ClosedLoop)]
    assert streams == [1, 16, 1] and len(burst.phases["burst"].requests) == 16 and burst.most_streams == 16
    tries = [phase for phase in pause.phases.values() if isinstance(phase, Intrusion)]
    assert len(tries) == 3 and all(abs(len(TOKENIZER.encode(one.intruder.prompt)) - 300) <= 2 for one in tries)


def test_every_round_has_other_prompts_and_arrivals():
    plan, shared = Plan(rates=[2.0], num_requests=4), deck()
    first, second = plan.make(shared, seed=0)[0], plan.make(shared, seed=1)[0]
    assert not {one.prompt for one in first.requests} & {one.prompt for one in second.requests}
    assert first.phases["all"] != second.phases["all"] and first.name == second.name
