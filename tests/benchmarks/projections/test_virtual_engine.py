"""An engine on played ranks gives the text of one rank, and its clock takes the slowest rank of each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.virtual_engine import CommunicationTimes, VirtualClock, virtual_engine
from benchmarks.projections.virtual_ranks import PlayedStep, VirtualRanks
from lp import Engine, Lookahead, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.step_cost import Extras, StepTimes
from lp.tree import chain
from parallel.sharding.tensor import read_sharded
from tests.parallel.runners.native import load_native, native
from tests.slow import slow_except

__all__ = ["native"]

PROMPTS = [[(3 + 7 * i) % 41 + 2 for i in range(20)], [(5 + 3 * i) % 37 + 2 for i in range(30)]]
COMMUNICATION = CommunicationTimes(exchange_s=0.5, collective_s=0.01)


def texts(engine: Engine) -> list[list[int]]:
    """Decodes all prompts side by side."""
    found: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(16)
        engine.add_request(engine.request_builder.build(prompt, Lookahead(5, 4, 5), sampling, stopping, str(number)))
        found[str(number)] = []
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id] += output.tokens
    return list(found.values())


@pytest.mark.parametrize(("lp", "tp"), slow_except([(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)], (2, 2)))
def test_texts_are_those_of_one_rank(lp: int, tp: int, llama: Engine, checkpoint_folder: Callable[[str], Path]) -> None:
    settings = ModelSettings(str(checkpoint_folder("llama")), device="cpu")
    engine, clock = virtual_engine(settings, lp, tp, COMMUNICATION)
    begin = clock()
    assert texts(engine) == texts(llama)
    assert (clock() - begin > 0.5) == (lp * tp > 1), "every step has an exchange"


def test_a_step_takes_as_long_as_its_slowest_rank_and_its_communication() -> None:
    group = LoneRank(2)
    clock = VirtualClock(COMMUNICATION, group, 4)
    group.count(14, 100, 0.0)  # seven of each of two replicas
    begin = clock()
    clock.note(PlayedStep([], (3.0, 2.0), num_computing=2, rows=1, untimed_s=4.0, copying_s=(0.5, 1.0)))
    assert clock() - begin == pytest.approx(-(3 + 2 + 4) + 3.5 + 0.5 + 7 * 0.01, abs=0.01)


def test_played_ranks_split_a_long_prompt_and_are_charged_for_copies(native: Callable[..., str]) -> None:
    checkpoint = load_native(native("llama"), "float32")
    checkpoint.model.forward(chain([1]), checkpoint.model.make_cache(1), num_logits=1)  # shows the shapes of its caches
    steps = list[PlayedStep]()
    runner = VirtualRanks(checkpoint.model, 3, steps.append)
    runner.use_times(StepTimes((1, 512), (0.01, 5.12), extras=Extras(copy=1e-6, copied_token=1e-6)))
    prompt = [(3 + 7 * i) % 41 + 2 for i in range(300)]
    sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(8)
    text = Engine(checkpoint, runner).generate(prompt, decode=Lookahead(5, 4, 5), sampling=sampling, stopping=stopping)
    alone = Engine(checkpoint).generate(prompt, decode=Lookahead(5, 4, 5), sampling=sampling, stopping=stopping)
    assert text.token_ids == alone.token_ids
    first = steps[0]
    largest, layers = 100, 3
    assert first.copying_s == pytest.approx((layers * 1e-6 + 3 * largest * 1e-6,) * 3, rel=0.02)
    assert first.slowest_s == pytest.approx(max(first.seconds) + first.copying_s[0])
    assert min(first.seconds) > 0 and first.num_computing == 3


def test_native_code_finds_its_collectives_answered(checkpoint_folder: Callable[[str], Path]) -> None:
    group = LoneRank(2)
    settings = ModelSettings(str(checkpoint_folder("llama")), device="cpu")
    whole = load(settings).model
    shard = load(settings, reader=read_sharded(group), group=group).model
    assert type(shard.fast) is type(whole.fast) and shard.weight_bytes < 0.7 * whole.weight_bytes
    before = group.traffic.num_collectives
    shard.forward(chain([1, 2]), shard.make_cache(2), num_logits=2)
    assert group.traffic.num_collectives - before == 2 * 3 + 2, "two for each layer, the embedding and the logits"
