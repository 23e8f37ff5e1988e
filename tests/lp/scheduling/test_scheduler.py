"""Which requests take part in a step, and how many tokens of a prompt are fed in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.cache import PAGE
from lp.runner.single_device import SingleDevice
from lp.scheduling.batch import Turn
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.request_state import RequestState
from lp.scheduling.scheduler import Scheduler, StepRows
from lp.scheduling.settings import SchedulerSettings
from lp.step_cost import Extras, StepTimes
from lp.tree import chain

GREEDY = Sampling(temperature=0.0, seed=0)
PROMPTS = [[5, 9, 5, 9], [40, 41, 42], [7]]


def submit_all(engine: Engine, num_tokens: int) -> None:
    for number, prompt in enumerate(PROMPTS):
        decode = Auto(rows=12) if number else Lookahead(5, 4, 5)
        stopping = Stopping(num_tokens + number)
        engine.add_request(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))


def generations(engine: Engine) -> list[RequestState]:
    submit_all(engine, 4)
    return list(engine.scheduler)


def prompts_of(engine: Engine, lengths: list[int], priorities: list[float]) -> list[RequestState]:
    """Generations with prompts of these lengths."""
    found = []
    for number, (length, priority) in enumerate(zip(lengths, priorities, strict=True)):
        prompt = [(7 * at + number) % 50 + 2 for at in range(length)]
        request = engine.request_builder.build(
            prompt, Autoregressive(), GREEDY, Stopping(9), request_id=str(number), priority=priority
        )
        found.append(RequestState(request, engine.checkpoint, engine.history))
    return found


def next_turns(scheduler: Scheduler) -> list[Turn]:
    """What the next step would be."""
    return scheduler.next_turns(scheduler.admitted())


def run(scheduler: Scheduler, num_steps: int) -> list[list[tuple[str, int, bool]]]:
    """The turns of some steps: each request's name, the tokens that have been computed, and whether it decodes."""
    steps = []
    for _ in range(num_steps):
        batch = scheduler.start(next_turns(scheduler))
        scheduler.release(batch)
        for turn in batch.turns:
            turn.state.num_computed = turn.num_computed
            if turn.decodes:
                turn.state.sequence.tokens.append(3)
                turn.state.num_computed += 1
        steps.append([(turn.state.sequence.id, turn.num_computed, turn.decodes) for turn in batch.turns])
    return steps


class Depth(SingleDevice):
    """A runner that takes several batches at once, of which nothing is run."""

    def __init__(self, depth: int):
        self.depth = depth


def scheduler_of(
    states: list[RequestState], rows: StepRows, budget: KVBudget | None = None, depth: int = 1
) -> Scheduler:
    scheduler = Scheduler(Depth(depth), budget=budget)
    scheduler.rows = rows
    for state in states:
        scheduler.add_open(state)
    return scheduler


def test_a_request_with_a_step_in_flight_gets_no_turn(llama: Engine) -> None:
    first, second = prompts_of(llama, [5, 6], [1, 1])
    scheduler = scheduler_of([first, second], StepRows(16))
    turns = next_turns(scheduler)
    assert [turn.state for turn in turns] == [first, second] and next_turns(scheduler) == turns
    batch = scheduler.start(turns[:1])
    assert list(scheduler) == [first, second] and [turn.state for turn in next_turns(scheduler)] == [second]
    scheduler.release(batch)
    assert [turn.state for turn in next_turns(scheduler)] == [first, second]
    assert set(scheduler.clear()) == {first.sequence.id, second.sequence.id}
    assert len(scheduler) == 0 and next_turns(scheduler) == []


def test_a_prompt_is_fed_in_chunks_beside_those_who_decode(llama: Engine) -> None:
    first, second, long = prompts_of(llama, [3, 4, 50], [1, 1, 1])
    scheduler = scheduler_of([first, second], StepRows(beside=18, most=40))
    assert run(scheduler, 1) == [[("0", 2, True), ("1", 3, True)]], "short prompts decode in the step that feeds them"
    scheduler.add_open(long)
    turns = run(scheduler, 5)
    assert [step[2:] for step in turns] == [
        [("2", 16, False)], [("2", 32, False)], [("2", 48, False)], [("2", 49, True)], [("2", 50, True)]
    ]  # fmt: skip
    assert all([name for name, _, decodes in step if decodes][:2] == ["0", "1"] for step in turns)


def test_chunks_become_shorter_the_more_tokens_are_before_them(llama: Engine) -> None:
    decoding, prompt = prompts_of(llama, [2, 300], [1, 1])
    scheduler = scheduler_of([decoding], StepRows(beside=61, most=100, per_thousand=10.0))
    run(scheduler, 1)
    scheduler.add_open(prompt)
    fed = [dict((name, number) for name, number, _ in step)["1"] for step in run(scheduler, 4)]
    assert fed == [60, 97, 127, 153], "60 rows, then 60 / 1.6, 60 / 1.97 and 60 / 2.27"


def test_drafts_take_rows_from_a_single_prompt_and_hardly_from_many(llama: Engine) -> None:
    decoding, *prompts = prompts_of(llama, [2, 90, 90, 90], [1] * 4)
    scheduler = scheduler_of([decoding], StepRows(beside=40, most=100))
    run(scheduler, 1)
    decoding.tree = chain([3] * 13)
    scheduler.add_open(prompts[0])
    assert [turn.num_computed for turn in next_turns(scheduler)[1:]] == [27], "40 without the root and twelve drafts"
    for prompt in prompts[1:]:
        scheduler.add_open(prompt)
    assert [turn.num_computed for turn in next_turns(scheduler)[1:]] == [35], "40 without the root and a third of them"


def test_a_step_has_more_rows_if_many_prompts_wait(llama: Engine) -> None:
    decoding, *prompts = prompts_of(llama, [2] + [90] * 4, [1] * 5)
    scheduler = scheduler_of([decoding], StepRows(beside=20, most=100, crowding=3.0))
    run(scheduler, 1)
    fed = []
    for prompt in prompts:
        scheduler.add_open(prompt)
        fed.append(sum(turn.num_computed for turn in next_turns(scheduler)[1:]))
    assert fed == [19, 39, 59, 59], "the rows for one prompt, twice and at most three times as many, without the root"


def test_only_rows_that_nobody_set_grow_with_the_prompts_that_wait() -> None:
    times = StepTimes((1, 16, 32, 64), (0.010, 0.010, 0.018, 0.034))
    assert StepRows.of(None, times, 1).crowding > 1 and StepRows.of(24, times, 1).per_part(9, 1) == 24
    assert StepRows.of(None, None, 1).per_part(9, 1) == StepRows.beside
    assert StepRows(40, 50, crowding=2.0).per_part(9, 1) == 50, "never more than any step may have"


def test_prompts_alone_are_fed_by_the_largest_steps(llama: Engine) -> None:
    scheduler = scheduler_of(prompts_of(llama, [90, 60], [1, 1]), StepRows(beside=8, most=40))
    assert run(scheduler, 2) == [[("1", 40, False)], [("0", 20, False), ("1", 59, True)]]


def test_where_step_times_are_known_several_prompts_are_fed_so_that_the_first_decodes_soon(
    llama: Engine,
) -> None:
    rows = StepRows(beside=8, most=40, crowding=2.0)
    scheduler = scheduler_of(prompts_of(llama, [30, 20], [1, 1]), rows)
    assert run(scheduler, 2) == [[("1", 16, False)], [("0", 12, False), ("1", 19, True)]]
    assert run(scheduler_of(prompts_of(llama, [60], [1]), rows), 1) == [[("0", 40, False)]]


def test_heavy_and_short_prompts_come_first_and_none_starves(llama: Engine) -> None:
    generations = prompts_of(llama, [81, 41, 81], [1, 1, 4])
    scheduler = scheduler_of(generations, StepRows(beside=20, most=20))
    order = [name for step in run(scheduler, 14) for name, _, decodes in step if not decodes]
    assert list(dict.fromkeys(order)) == ["2", "1", "0"]
    late = prompts_of(llama, [11] * 40, [1] * 40)
    scheduler = scheduler_of(prompts_of(llama, [61], [1]), StepRows(beside=10, most=10))
    for number, generation in enumerate(late):
        generation.sequence.id = f"late {number}"
        scheduler.add_open(generation)
        run(scheduler, 1)
    assert next(iter(scheduler)).num_computed >= 60, "short prompts that keep coming do not hold up a long one for ever"


def test_those_who_decode_take_turns_by_their_priority(llama: Engine) -> None:
    generations = prompts_of(llama, [2] * 4, [1, 1, 1, 3])
    scheduler = scheduler_of(generations, StepRows(beside=2, most=2))
    names = [name for step in run(scheduler, 60) for name, _, decodes in step if decodes]
    counts = [names.count(str(number)) for number in range(4)]
    assert len(names) >= 116 and max(counts[:3]) - min(counts[:3]) <= 1
    assert counts[3] / counts[0] == pytest.approx(3, rel=0.15)


def test_prompts_keep_a_share_of_each_step(llama: Engine) -> None:
    generations = prompts_of(llama, [2] * 8, [1] * 8)
    scheduler = scheduler_of(generations, StepRows(beside=8, most=30))
    run(scheduler, 2)
    (long,) = prompts_of(llama, [20], [1])
    long.sequence.id = "long"
    scheduler.add_open(long)
    assert [step[-1] for step in run(scheduler, 3)] == [("long", 2, False), ("long", 4, False), ("long", 6, False)]


def test_each_replica_can_be_fed_another_prompt(llama: Engine) -> None:
    """One of them computes all of a prompt's chunk, so it is no larger than one can take."""
    decoding, *prompts = prompts_of(llama, [2, 100, 100, 100], [1] * 4)
    scheduler = scheduler_of([decoding], StepRows(beside=10, most=40, num_parts=2))
    run(scheduler, 1)
    for prompt in prompts:
        scheduler.add_open(prompt)
    assert run(scheduler, 1)[0][1:] == [("1", 10, False), ("2", 9, False)]
    assert run(scheduler_of(prompts_of(llama, [100], [1]), StepRows(10, 40, 2)), 1) == [[("0", 40, False)]]


def test_who_has_lost_its_room_is_named(llama: Engine) -> None:
    first, second = prompts_of(llama, [PAGE - 4, PAGE - 4], [1, 1])
    scheduler = scheduler_of([first, second], StepRows(), KVBudget(2))
    assert len(next_turns(scheduler)) == 2 and scheduler.preempted(scheduler.admitted()) == []
    run(scheduler, 6)
    assert scheduler.preempted(scheduler.admitted()) == [second], "the first needs a second page"
    second.num_computed = 0
    assert scheduler.preempted(scheduler.admitted()) == [] and [turn.state for turn in next_turns(scheduler)] == [first]


def test_batches_under_way_together_share_the_generations(llama: Engine) -> None:
    generations = prompts_of(llama, [3] * 5, [1] * 5)
    scheduler = scheduler_of(generations, StepRows(), depth=2)
    sizes = []
    while turns := next_turns(scheduler):
        scheduler.start(turns)
        sizes.append(len(turns))
    assert sizes == [3, 2]


def test_rows_of_a_step_follow_from_the_step_times() -> None:
    times = StepTimes((1, 16, 20, 40), (1.0, 1.0, 2.0, 4.0))
    assert StepRows.of(None, times, 2) == StepRows(18, 512, 2, crowding=2.0)
    slow = replace(times, extras=Extras(thousand_cached=0.8))
    assert (
        StepRows.of(None, slow, 1).per_thousand == pytest.approx(0.2 / ((slow.at(64) - slow.at(16)) / 48))
        and StepRows.of(None, None, 1) == StepRows()
    )
    assert StepRows.of(7, times, 1) == StepRows(7, 512) and StepRows.of(900, None, 1) == StepRows(900, 900)
    with pytest.raises(ValueError, match=r"scheduler\.max_step_rows=0 must be at least 1"):
        SchedulerSettings(0).check()


def test_steps_of_one_batch_give_the_tokens_of_each_by_itself(llama: Engine) -> None:
    alone = {}
    for number, prompt in enumerate(PROMPTS):
        alone[str(number)] = llama.generate(prompt, max_new_tokens=20 + number, sampling=GREEDY).token_ids
    engine = Engine(llama.checkpoint)
    submit_all(engine, 20)
    tokens: dict[str, list[int]] = {name: [] for name in alone}
    sizes = []
    while not engine.is_idle:
        batch = engine.step()
        sizes.append(len(batch))
        for output in batch:
            tokens[output.request_id] += output.tokens
    assert tokens == alone
    assert sizes[0] == len(PROMPTS) and sizes == sorted(sizes, reverse=True)


def test_one_of_a_batch_can_be_cancelled(llama: Engine) -> None:
    engine = Engine(llama.checkpoint)
    submit_all(engine, 20)
    engine.step()
    ended = engine.abort("1")
    assert ended is not None and ended.finish_reason == "cancelled" and engine.abort("1") is None
    assert {output.request_id for output in engine.step()} == {"0", "2"}
