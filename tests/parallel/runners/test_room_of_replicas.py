"""Ranks with few pages: requests wait for memory and lose it, and every text is the one that it is alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.contiguous import ContiguousMemory
from lp.model.checkpoint import ModelSettings, load
from lp.runner.single_device import SingleDevice
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.mixture import check_mixture, make_mixture, run_mixture
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

GREEDY = Sampling(temperature=0.0, seed=3)
# The first prompts have a page, and need a second one while they are answered; the last ones have two from the start.
LENGTHS = [225, 231, 237, 243, 249, 290, 300]
PROMPTS = [[(3 + n + (7 + n) * i) % 41 + 2 for i in range(length)] for n, length in enumerate(LENGTHS)]
METHODS = [Autoregressive(), Lookahead(3, 3, 3)]


def engine_of(channel: Channel, folder: str, mode: str, num_pages: int, **settings: Any) -> Engine:
    checkpoint = load(ModelSettings(folder, device="cpu"))
    memory = checkpoint.model.memory = ContiguousMemory(3, num_pages)
    runner = share_steps(SingleDevice(checkpoint.model, prefill_chunk=64), channel, mode)  # type: ignore[arg-type]
    budget = KVBudget(channel.least(memory.num_pages))
    return Engine(checkpoint, runner, fingerprints=True, budget=budget, **settings)


def serve(engine: Engine) -> tuple[dict[str, list[int]], int, int]:
    """The tokens of each request, the most that had room at the same time, and how often one lost it."""
    for number, prompt in enumerate(PROMPTS):
        stopping = Stopping(30 + 4 * number, ignore_eos=True)
        decode = METHODS[number % 2]
        engine.add_request(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    most = num_preempted = 0
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
            num_preempted += output.engine.preemptions if output.engine else 0
        most = max(most, len(engine.scheduler.admitted()))
    assert engine.runner.cache_bytes == 0
    return tokens, most, num_preempted


def serve_on_ranks(mesh: Mesh, channel: Channel, folder: str, mode: str) -> tuple[dict[str, list[int]], int, int]:
    return serve(engine_of(channel, folder, mode, num_pages=3))


@pytest.fixture(scope="module")
def expected(llama: Engine) -> dict[str, list[int]]:
    return serve(Engine(llama.checkpoint))[0]


@pytest.mark.parametrize(
    ("mode", "num_ranks"),
    exhaustive_except([("auto", 2), ("dp", 2), ("auto", 3), ("lp", 2)], ("dp", 2), ("auto", 3), quick=[("lp", 2)]),
)
def test_no_more_requests_run_than_each_rank_can_hold(
    mode: str, num_ranks: int, checkpoint_folder: Callable[[str], Path], expected: dict[str, list[int]]
) -> None:
    folder = str(checkpoint_folder("llama"))
    for tokens, found, num_preempted in run_ranks(serve_on_ranks, num_ranks, folder, mode, exchange="gloo"):
        assert tokens == expected
        assert found == 3 and num_preempted > 0, "what has grown has lost its room"


def serve_mixture(
    mesh: Mesh, channel: Channel, folder: str, mode: str, reuse: PrefixReuse
) -> tuple[int, int, dict[str, list[int]]]:
    """Serves a random mixture and checks the texts; the most that had room at the same time, pages, tokens."""
    alone = Engine(load(ModelSettings(folder, device="cpu")))
    engine = engine_of(channel, folder, mode, num_pages=3, scheduler=SchedulerSettings(prefix_reuse=reuse))
    mixture, admitted = make_mixture(alone, 14, 5, most_prompt=120, most_tokens=190), [0]

    def look(step: int) -> None:
        admitted.append(len(engine.scheduler.admitted()))

    run_mixture(engine, mixture, look)
    if mesh.rank == 0:
        check_mixture(mixture, alone)
    return max(admitted), engine.scheduler.budget.num_pages, mixture.tokens


@pytest.mark.parametrize(
    ("mode", "num_ranks", "reuse"),
    exhaustive_except(
        [
            ("auto", 2, PrefixReuse.all),
            ("dp", 3, PrefixReuse.off),
            ("auto", 3, PrefixReuse.off),
            ("dp", 2, PrefixReuse.all),
        ],
        ("dp", 3, PrefixReuse.off),
    ),
)
def test_a_mixture_yields_what_each_request_yields_alone(
    mode: str, num_ranks: int, reuse: PrefixReuse, checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = str(checkpoint_folder("llama"))
    results = run_ranks(serve_mixture, num_ranks, folder, mode, reuse, timeout_s=60, limit_s=240)
    for most, num_pages, tokens in results:
        assert most <= num_pages and tokens == results[0][2]
