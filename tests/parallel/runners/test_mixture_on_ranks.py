"""A random mixture of requests on real ranks yields what each of them yields alone, whoever computes what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Engine
from lp.runner.single_device import SingleDevice
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.mixture import check_mixture, make_mixture, run_mixture
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_batches_on_ranks import WAYS
from tests.slow import exhaustive_except


def run_on_ranks(mesh: Mesh, channel: Channel, folder: str, name: str, number: int, seed: int):
    """What the mixture has yielded on this rank."""
    alone = Engine.from_pretrained(folder, device="cpu")
    assert isinstance(alone.runner, SingleDevice)
    runner = LookaheadParallel(alone.runner, channel, messages=channel.messages, sharing=WAYS[name](seed))
    settings = SchedulerSettings(max_step_rows=24, prefix_reuse=PrefixReuse.all)
    engine = Engine(alone.checkpoint, runner, fingerprints=True, scheduler=settings)
    mixture = run_mixture(engine, make_mixture(engine, number, seed))
    assert runner.copying is not None and (runner.copying.num_tokens > 0) == ("copies" in name)
    return mixture


@pytest.mark.parametrize(
    ("name", "num_ranks", "seed"),
    exhaustive_except(
        [
            ("lp", 2, 1),
            ("drawn", 3, 2),
            ("drawn, copies", 3, 9),
            ("changing, copies", 2, 10),
            ("lp", 4, 3),
            ("changing", 3, 4),
            ("drawn", 2, 5),
            ("drawn", 4, 6),
            ("changing", 2, 7),
            ("dp", 3, 8),
            ("drawn, copies", 4, 11),
            ("changing, copies", 4, 12),
            ("changing, copies", 3, 13),
        ],
        ("lp", 4, 3),
        ("dp", 3, 8),
        ("changing, copies", 2, 10),
        ("changing", 3, 4),
        ("drawn, copies", 3, 9),
        quick=[("lp", 2, 1)],
    ),
)
def test_a_mixture_yields_what_each_request_yields_alone(
    name: str, num_ranks: int, seed: int, checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    mixtures = run_ranks(
        run_on_ranks, num_ranks, str(checkpoint_folder("llama")), name, 24, seed, exchange="shm", limit_s=240
    )
    for mixture in mixtures[1:]:
        assert (mixture.tokens, mixture.ends) == (mixtures[0].tokens, mixtures[0].ends)
    check_mixture(mixtures[0], llama)
