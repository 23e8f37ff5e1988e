"""A beam search yields the same texts and scores however many ranks compute its trees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lp import Beam, Engine, Sampling, Stopping
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_lookahead_parallel import PROMPTS, parallel_engine
from tests.parallel.runners.test_packed_on_ranks import connect, make_engine
from tests.slow import slow_except

SEARCHES = [
    Beam(4, num_return_sequences=2),
    Beam(3, length_penalty=0.0, early_stopping="never", best_first=True),
]
Found = list[tuple[list[int], float]]


def search(engine: Engine) -> list[Found]:
    """The texts of every search after every prompt, with their scores."""
    stopping = Stopping(10, stop_token_ids=[4, 9], ignore_eos=True)
    found = []
    for decode in SEARCHES:
        for prompt in PROMPTS:
            beams = engine.generate(prompt, decode=decode, sampling=Sampling.greedy(), stopping=stopping).beams
            assert beams is not None
            found.append([(text.token_ids, text.score) for text in beams.texts])
    return found


def by_lookahead_parallelism(mesh: Mesh, channel: Channel, folder: str) -> list[Found]:
    return search(parallel_engine(channel, folder))


def by_parts_of_a_model(mesh: Mesh, channel: Channel, folder: str, axis: str) -> list[Found]:
    with closing(connect(mesh, axis)) as parts:
        return search(make_engine(channel, axis, parts, folder))


def assert_same(found: list[list[Found]], expected: list[Found]) -> None:
    for of_rank in found:
        for texts, wanted in zip(of_rank, expected, strict=True):
            assert [tokens for tokens, _ in texts] == [tokens for tokens, _ in wanted]
            assert [score for _, score in texts] == pytest.approx([score for _, score in wanted], abs=1e-4)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_lookahead_parallelism(num_ranks: int, checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    folder = str(checkpoint_folder("llama"))
    assert_same(run_ranks(by_lookahead_parallelism, num_ranks, folder, timeout_s=60), search(llama))


@pytest.mark.parametrize("axis", slow_except(["tp", "pp"], "tp"))
def test_parts_of_a_model(axis: str, checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    folder = str(checkpoint_folder("llama"))
    assert_same(run_ranks(by_parts_of_a_model, 2, folder, axis, timeout_s=60), search(llama))
