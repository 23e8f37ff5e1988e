"""Ranks played by one device do what real ranks do and are timed by the clock that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, pairwise

import pytest

from benchmarks.projections.virtual_ranks import PlayedStep, VirtualRanks
from lp import Engine, Lookahead, Sampling, Stopping
from lp.tree import TokenTree
from parallel.runners.sharing import TreePartitioner

PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(20)]
DECODE = Lookahead(5, 4, 5)


def ticking(period: float) -> Callable[[], float]:
    """A clock that advances by `period` whenever it is read."""
    readings: Iterator[int] = count()
    return lambda: next(readings) * period


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_parts_are_those_of_lookahead_parallelism(num_ranks: int, llama: Engine) -> None:
    steps: list[tuple[PlayedStep, TokenTree, list[int]]] = []

    def note(step: PlayedStep) -> None:
        (own,) = step.inputs
        steps.append((step, own.tree, list(own.sequence.tokens)))

    sampling, stopping = Sampling(temperature=0.0, seed=0), Stopping(24)
    clock = ticking(0.25)
    runner = VirtualRanks(llama.checkpoint.model, num_ranks, note, clock)
    text = Engine(llama.checkpoint, runner).generate(PROMPT, decode=DECODE, sampling=sampling, stopping=stopping)
    alone = llama.generate(PROMPT, decode=DECODE, sampling=sampling, stopping=stopping)
    assert text.token_ids == alone.token_ids
    partitioner = TreePartitioner(num_ranks)
    parts = [partitioner.split(tree, tokens) for _, tree, tokens in steps]
    largest = [max(map(len, shared)) for shared in parts]
    for (step, _, _), most in zip(steps, largest, strict=True):
        assert step.seconds == (0.25,) * num_ranks and step.slowest_s == 0.25
        assert step.rows >= most
    assert steps[0][0].rows >= len(PROMPT)
    if num_ranks > 1:
        lengths = [len(tokens) for _, _, tokens in steps]
        accepted = [later - earlier for earlier, later in pairwise(lengths)]
        fed = [step.rows - most for (step, _, _), most in zip(steps[1:], largest[1:], strict=True)]
        assert all(again < tokens for again, tokens in zip(fed, accepted, strict=True))
