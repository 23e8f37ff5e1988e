"""Models with recurrent layers on real ranks: a rank that has not computed what was accepted computes it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedModel

from lp import Engine, Stopping
from lp.model.checkpoint import ModelSettings
from lp.model.compilation import CompileMode
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.measure import StepTimesSource
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.sharding.stages import check_stages
from tests.lp.test_hybrids import serve
from tests.lp.test_lossless import GREEDY, METHODS, NUM_TOKENS, SIZES, decode, make_prompt, settings
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.parallel.groups.test_epoch import KINDS, check_survivors
from tests.parallel.modes import engines
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

ARCHITECTURES = ("lfm2", "qwen3_next", "bamba", "minimax", "mamba2", "jamba")
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
        ("qwen3_next", 2, "off"),
        ("bamba", 2, "on"),
        ("qwen3_next", 3, "on"),
        ("minimax", 2, "on"),
        ("mamba2", 2, "on"),
        ("jamba", 2, "on"),
        quick=[("lfm2", 2, "on")],
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
        ("mamba2", 1),
        quick=[("lfm2", 0)],
    ),
)
def test_the_text_goes_on_when_a_rank_is_killed(
    architecture: str, victim: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    check_survivors(KINDS, "shm", 2, victim, 7, checkpoint_folder, architecture)


# Models of four layers, at least two of which have a state, and some neighbours of which have no attention.
FOUR_LAYERS: dict[str, dict[str, Any]] = {
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [2]},
    "qwen3_next": {"num_hidden_layers": 4},
    "nemotron_h": {"num_hidden_layers": 4, "time_step_min": 1e-9},  # transformers limits them in prompts alone
    "minimax": {"num_hidden_layers": 4},
    "jamba": {"num_hidden_layers": 4},
}


def run_split(mesh: Mesh, channel: Channel, folder: str, axis: str, compile: str):
    """What `run_all` returns, and what a request yields that goes on from fewer tokens than its caches hold."""
    model = ModelSettings(folder, device="cpu", compile=CompileMode(compile))
    settings_of_all: dict[str, Any] = {
        "step_times": StepTimesSource.off,
        "scheduler": SchedulerSettings(prefix_reuse=PrefixReuse.owner),
    }
    found = []
    for engine in engines(mesh, folder, [{axis: mesh.num_ranks}], model, **settings_of_all):
        assert (engine.checkpoint.model.fast is not None) == (compile == "on")
        texts = [decode(engine, prompt, settings(one, SIZES[2]), NUM_TOKENS) for prompt in PROMPTS for one in METHODS]
        found += [texts, serve(engine, PROMPTS), go_on(engine, PROMPTS[-1])]
    return found


def go_on(engine: Engine, prompt: list[int]) -> list[int]:
    """All tokens of a request that is resumed with some of its tokens in the middle of its steps."""
    request = engine.request_builder.build(
        prompt, settings("lookahead", SIZES[1]), GREEDY, Stopping(NUM_TOKENS, ignore_eos=True), request_id="it"
    )
    engine.add_request(request)
    while len(known := engine.generated()["it"]) < 8:
        engine.step()
    (output,) = engine.resume(engine.runner, [(request, known[:4])], None)
    tokens = list(output.tokens)
    while not engine.is_idle:
        tokens += [token for output in engine.step() for token in output.tokens]
    return tokens


@pytest.mark.parametrize(
    ("architecture", "axis", "num_ranks", "compile"),
    exhaustive_except(
        [
            *((name, "pp", 2, mode) for name in FOUR_LAYERS for mode in ("off", "on")),
            *(
                (name, "tp", 2, mode)
                for name in ("qwen3_next", "granitemoehybrid", "minimax")
                for mode in ("off", "on")
            ),
            ("lfm2", "pp", 3, "on"),
        ],
        ("lfm2", "pp", 3, "on"),
        ("bamba", "pp", 2, "off"),
        ("qwen3_next", "pp", 2, "on"),
        ("qwen3_next", "tp", 2, "on"),
        ("granitemoehybrid", "tp", 2, "off"),
        ("nemotron_h", "pp", 2, "on"),
        ("minimax", "pp", 2, "on"),
        ("minimax", "tp", 2, "on"),
        ("jamba", "pp", 2, "on"),
        quick=[("lfm2", "pp", 2, "off")],
    ),
)
def test_split_models_give_the_tokens_of_generate(
    architecture: str, axis: str, num_ranks: int, compile: str, tmp_path: Path
) -> None:
    """Each stage holds the states of its layers; ranks that share layers compute recurrent ones whole."""
    folder = save_checkpoint(tmp_path, architecture, **FOUR_LAYERS.get(architecture, {}))
    expected = [generate_greedily(load_reference(folder), prompt, 40) for prompt in PROMPTS]
    for texts, served, resumed in run_ranks(run_split, num_ranks, str(folder), axis, compile, timeout_s=60):
        assert texts == [tokens[:NUM_TOKENS] for tokens in expected for _ in METHODS]
        assert [*served.values()] == expected
        assert resumed == expected[-1][:NUM_TOKENS]


def test_each_stage_needs_a_recurrent_layer(checkpoint_folder: Callable[[str], Path]) -> None:
    config = AutoConfig.from_pretrained(checkpoint_folder("qwen3_next"))
    check_stages(config, 2)
    with pytest.raises(ValueError, match=r"parallel\.pp=3 is more than the 2 recurrent layers .* use parallel\.pp=2"):
        check_stages(config, 3)
