"""Log-probabilities of prompts under every mode of parallelism, beside requests that begin like one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Engine
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.mixture import Mixture, check_mixture, make_mixture, run_mixture
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks

BEGINNING = [(5 * at) % 97 + 2 for at in range(40)]
MODES: list[dict[str, int]] = [{"tp": 2}, {"pp": 2}, {"lp": 2}]


def run_modes(mesh: Mesh, channel: Channel, folder: str) -> list[Mixture]:
    """What a mixture of requests yields under each mode."""
    scheduler = SchedulerSettings(max_step_rows=24, prefix_reuse=PrefixReuse.all)
    made = engines(mesh, folder, MODES, scheduler=scheduler)
    return [run_mixture(engine, make_mixture(engine, 12, 5, beginning=BEGINNING)) for engine in made]


@pytest.mark.slow
def test_a_mixture_yields_what_each_request_yields_alone(
    checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    by_rank = run_ranks(run_modes, 2, str(checkpoint_folder("llama")), exchange="gloo", timeout_s=60, limit_s=300)
    for number, mode in enumerate(MODES):
        mixture = by_rank[0][number]
        assert len(mixture.prompt_logprobs) >= 2, mode
        assert any(cached >= len(BEGINNING) for cached in mixture.cached.values()), mode
        check_mixture(mixture, llama)
        assert by_rank[1][number].tokens == mixture.tokens
