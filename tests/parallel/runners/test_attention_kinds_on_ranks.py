"""Lookahead parallelism on real ranks, of models whose layers share keys and values, or have latent attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from lp import Engine, Lookahead
from lp.model.compilation import CompileMode
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.measure import StepTimesSource
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners import copying
from tests.lp.test_lossless import METHODS, NUM_TOKENS, SIZES, decode, make_prompt, settings
from tests.models import generate_greedily
from tests.parallel.groups.test_epoch import KINDS, check_survivors
from tests.parallel.groups.test_moves import check_move
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.native import native
from tests.parallel.runners.test_copying_on_ranks import take_turns
from tests.parallel.runners.test_prefill_split import feed
from tests.slow import exhaustive_except

pytestmark = pytest.mark.slow
__all__ = ["native"]
# All layers but the first ones share keys and values; heads of two sizes; latent attention.
ARCHITECTURES = ("gemma4", "gemma4_moe", "deepseek_v3")
# What is copied of a token is as in gemma4.
MOST = exhaustive_except(ARCHITECTURES, "gemma4", "deepseek_v3")
PROMPTS = [make_prompt(length, seed=length) for length in (1, 70, 200)]


def run_all(mesh: Mesh, channel: Channel, folder: str, mode: CompileMode) -> list[list[int]]:
    """What each method yields after each prompt."""
    alone = Engine.from_pretrained(folder, device="cpu", compile=mode, step_times=StepTimesSource.off)
    assert isinstance(alone.runner, SingleDevice)
    engine = Engine(alone.checkpoint, share_steps(alone.runner, channel), fingerprints=True)
    return [decode(engine, prompt, settings(method, SIZES[2]), NUM_TOKENS) for prompt in PROMPTS for method in METHODS]


@pytest.mark.parametrize("mode", [CompileMode.off, CompileMode.on])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_are_those_of_generate(
    architecture: str,
    mode: CompileMode,
    checkpoint_folder: Callable[[str], Path],
    reference_of: Callable[[str], PreTrainedModel],
) -> None:
    expected = [generate_greedily(reference_of(architecture), prompt, NUM_TOKENS) for prompt in PROMPTS]
    for found in run_ranks(run_all, 2, str(checkpoint_folder(architecture)), mode, timeout_s=60):
        assert found == [tokens for tokens in expected for _ in METHODS]


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("architecture", MOST)
def test_copied_keys_and_values_are_the_computed_ones(
    architecture: str, loses: bool, native: Callable[..., str], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    results = run_ranks(take_turns, 2, native(architecture), "float32", loses)
    for tokens, (_, num_copied), is_same in results:
        assert tokens[-13:] == generate_greedily(reference_of(architecture), tokens[:-13], 13)
        assert is_same and num_copied > 60


@pytest.mark.parametrize("architecture", MOST)
def test_prompts_that_ranks_compute_together_have_the_same_keys_and_values(
    architecture: str, native: Callable[..., str]
) -> None:
    assert run_ranks(feed, 2, native(architecture), "float32") == [(True, 4)] * 2


@pytest.mark.parametrize("victim", exhaustive_except([0, 1], 0))
@pytest.mark.parametrize("architecture", MOST)
def test_the_text_goes_on_when_a_rank_is_killed(
    architecture: str, victim: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    check_survivors(KINDS, "shm", 2, victim, 7, checkpoint_folder, architecture)


@pytest.mark.parametrize("architecture", MOST)
def test_a_text_that_moves_goes_on_with_its_keys_and_values(
    architecture: str, checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PIECE_BYTES", 2**15)
    folder = str(checkpoint_folder(architecture))
    first, second = (Engine.from_pretrained(folder, device="cpu") for _ in range(2))
    check_move(first, second, Lookahead())
