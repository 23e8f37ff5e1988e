"""The scheduler gives turns, one step in each batch; the engine can take batches of several steps as well."""

from __future__ import annotations

from lp import Auto, Engine, Lookahead, Sampling, Stopping
from lp.generation import Generation
from lp.scheduling.scheduler import Scheduler

GREEDY = Sampling(temperature=0.0, seed=0)
PROMPTS = [[5, 9, 5, 9], [40, 41, 42], [7]]


class AllAtOnce(Scheduler):
    """Puts the steps of all that wait into one batch."""

    def next_batch(self) -> list[Generation]:
        return list(self)


def submit_all(engine: Engine, num_tokens: int) -> None:
    for number, prompt in enumerate(PROMPTS):
        decode = Auto(rows=12) if number else Lookahead(5, 4, 5)
        stopping = Stopping(num_tokens + number)
        engine.submit(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))


def generations(engine: Engine) -> list[Generation]:
    submit_all(engine, 4)
    return list(engine.scheduler)


def test_turns_are_taken_in_order(llama: Engine) -> None:
    first, second, third = generations(Engine(llama.checkpoint))
    scheduler = Scheduler()
    assert scheduler.next_batch() == [] and len(scheduler) == 0
    for generation in (first, second, third):
        scheduler.add(generation)
    assert scheduler.next_batch() == [first] == scheduler.next_batch()  # it keeps its turn until it is removed
    scheduler.remove([first])
    scheduler.add(first)
    assert list(scheduler) == [second, third, first]
    scheduler.remove([third])
    assert list(scheduler) == [second, first]
    scheduler.clear()
    assert len(scheduler) == 0


def test_steps_of_one_batch_give_the_tokens_of_each_by_itself(llama: Engine) -> None:
    alone = {}
    for number, prompt in enumerate(PROMPTS):
        alone[str(number)] = llama.generate(prompt, max_new_tokens=20 + number, sampling=GREEDY).token_ids
    engine = Engine(llama.checkpoint)
    engine.scheduler = AllAtOnce()
    submit_all(engine, 20)
    tokens: dict[str, list[int]] = {name: [] for name in alone}
    sizes = []
    while not engine.is_idle:
        batch = engine.step()
        sizes.append(len(batch))
        for progress in batch:
            tokens[progress.request_id] += progress.tokens
    assert tokens == alone
    assert sizes[0] == len(PROMPTS) and sizes == sorted(sizes, reverse=True)


def test_one_of_a_batch_can_be_cancelled(llama: Engine) -> None:
    engine = Engine(llama.checkpoint)
    engine.scheduler = AllAtOnce()
    submit_all(engine, 20)
    engine.step()
    ended = engine.cancel("1")
    assert ended is not None and ended.finish_reason == "cancelled" and engine.cancel("1") is None
    assert {progress.request_id for progress in engine.step()} == {"0", "2"}
