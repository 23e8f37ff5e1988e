"""Ranks played by one device do what real ranks do and are timed by the clock that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.virtual_ranks import exchange_charges, record, replay
from lp import Engine, Lookahead, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from parallel.comm.rows import HEADER
from parallel.runners.sharing import TreePartitioner
from parallel.sharding.tensor import read_sharded

PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(20)]
DECODE = Lookahead(5, 4, 5)


def ticking(period: float) -> Callable[[], float]:
    """A clock that advances by `period` whenever it is read."""
    readings: Iterator[int] = count()
    return lambda: next(readings) * period


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_parts_are_those_of_lookahead_parallelism(num_ranks: int, llama: Engine) -> None:
    text = record(llama.checkpoint, num_ranks, DECODE, PROMPT, 24, ticking(0.25))
    alone = llama.generate(PROMPT, decode=DECODE, sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(24))
    assert text.new_tokens == alone.token_ids
    partitioner = TreePartitioner(num_ranks)
    parts = [partitioner.split(step.tree, text.sequence.tokens[: step.length]) for step in text.steps]
    for step, shared in zip(text.steps, parts, strict=True):
        largest = max(map(len, shared))
        assert step.seconds == (0.25,) * num_ranks
        assert step.charges == exchange_charges(largest, num_ranks)
        assert step.rows >= largest
    assert text.steps[0].rows >= len(PROMPT)
    if num_ranks > 1:
        assert exchange_charges(10, num_ranks).link_bytes == (HEADER + 10) * 4 * (num_ranks - 1)
        accepted = [later.length - step.length for step, later in zip(text.steps, text.steps[1:])]
        fed = [step.rows - max(map(len, shared)) for step, shared in zip(text.steps[1:], parts[1:], strict=True)]
        assert all(again < tokens for again, tokens in zip(fed, accepted, strict=True))


def test_a_shard_is_timed_on_the_steps_of_the_whole_model(
    llama: Engine, checkpoint_folder: Callable[[str], Path]
) -> None:
    collectives = LoneRank(2)
    settings = ModelSettings(str(checkpoint_folder("llama")), device="cpu")
    shard = load(settings, reader=read_sharded(collectives)).model
    single = record(llama.checkpoint, 1, DECODE, PROMPT, 24)
    played = replay(shard, collectives, single, ticking(2.0))
    assert played.new_tokens == single.new_tokens and played.rest_s == single.rest_s
    assert [step.tree for step in played.steps] == [step.tree for step in single.steps]
    assert [step.rows for step in played.steps] == [step.rows for step in single.steps]
    assert not any("visibility" in vars(step.tree) for step in single.steps)  # otherwise later replays would be cheaper
    layers, embedding_head_exchange = 3, 3
    for step in played.steps:
        assert step.seconds == (2.0,)
        assert step.charges.num_collectives == 2 * layers + embedding_head_exchange
        numbers = (2 * layers + 1) * 32 * step.rows + 300 / 2 * len(step.tree)  # two ranks: an all-reduce sends once
        assert step.charges.link_bytes == 4 * (numbers + HEADER + len(step.tree))
