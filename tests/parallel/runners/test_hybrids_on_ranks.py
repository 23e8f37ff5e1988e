"""Models with recurrent layers on real ranks: a rank that has not computed what was accepted computes it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig, PreTrainedModel

from lp import Engine
from lp.model.exactness import UnsupportedArchitecture
from lp.runner.single_device import SingleDevice
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.sharding.stages import check_stages
from parallel.sharding.tensor import check_degree
from tests.lp.test_hybrids import serve
from tests.lp.test_lossless import METHODS, NUM_TOKENS, SIZES, decode, make_prompt, settings
from tests.models import generate_greedily
from tests.parallel.groups.test_epoch import KINDS, check_survivors
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

ARCHITECTURES = ("lfm2", "qwen3_next", "bamba")
PROMPTS = [make_prompt(length, seed=length) for length in (3, 90, 270)]


def run_all(mesh: Mesh, channel: Channel, folder: str, compile: str) -> tuple[list[list[int]], dict[str, list[int]]]:
    """What each method yields, and what requests yield that are served together."""
    alone = Engine.from_pretrained(folder, device="cpu", step_times="off", compile=compile)
    assert isinstance(alone.runner, SingleDevice)
    runner = LookaheadParallel(alone.runner, channel, messages=channel.messages)
    assert not runner.can_copy
    reuse = SchedulerSettings(prefix_reuse=PrefixReuse.owner)
    engine = Engine(alone.checkpoint, runner, fingerprints=True, scheduler=reuse)
    found = [decode(engine, prompt, settings(method, SIZES[2]), NUM_TOKENS) for prompt in PROMPTS for method in METHODS]
    return found, serve(engine, PROMPTS)


@pytest.mark.parametrize(
    ("architecture", "num_ranks", "compile"),
    exhaustive_except(
        [(name, number, mode) for name in ARCHITECTURES for number in (2, 3) for mode in ("off", "on")],
        ("lfm2", 3, "off"),
        ("lfm2", 2, "on"),
        ("bamba", 2, "on"),
        ("qwen3_next", 3, "on"),
        quick=[("qwen3_next", 2, "off")],
    ),
)
def test_greedy_tokens_are_those_of_generate(
    architecture: str,
    num_ranks: int,
    compile: str,
    checkpoint_folder: Callable[[str], Path],
    reference_of: Callable[[str], PreTrainedModel],
) -> None:
    expected = [generate_greedily(reference_of(architecture), prompt, 40) for prompt in PROMPTS]
    for found, served in run_ranks(run_all, num_ranks, str(checkpoint_folder(architecture)), compile, timeout_s=60):
        assert found == [tokens[:NUM_TOKENS] for tokens in expected for _ in METHODS]
        assert [*served.values()] == expected


@pytest.mark.parametrize(
    ("architecture", "victim"),
    exhaustive_except(
        [(name, victim) for name in ARCHITECTURES for victim in (0, 1)],
        ("bamba", 0),
        ("qwen3_next", 1),
        quick=[("lfm2", 0)],
    ),
)
def test_the_text_goes_on_when_a_rank_is_killed(
    architecture: str, victim: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    check_survivors(KINDS, "shm", 2, victim, 7, checkpoint_folder, architecture)


def test_such_models_are_not_split(checkpoint_folder: Callable[[str], Path]) -> None:
    config = AutoConfig.from_pretrained(checkpoint_folder("qwen3_next"))
    for check in (check_degree, check_stages):
        with pytest.raises(UnsupportedArchitecture, match="has recurrent layers, which no plan splits among ranks"):
            check(config, 2)
