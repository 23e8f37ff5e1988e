"""decode=medusa on real ranks: guesses come from the rank that computed a row, and the text stays the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, Engine, Medusa, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.runner.single_device import SingleDevice
from parallel.comm.channel import Channel
from parallel.comm.connect import connect_axis
from parallel.mesh import Mesh, ParallelSettings
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.runners.tensor import TensorParallel
from parallel.sharding.stages import read_stage
from parallel.sharding.tensor import read_sharded
from tests.heads import fit_heads
from tests.models import generate_greedily
from tests.parallel.ranks import run_ranks

NUM_TOKENS = 24
PROMPTS = [[5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(70)]]
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=5, logprobs=2)
LOSSY = Medusa(verify="typical", exact=False, epsilon=0.01)
# The texts of each prompt, greedy and sampled, the accepted drafts of all of them, and a lossy text.
Found = tuple[list[list[int]], int, list[int]]


def decode(engine: Engine) -> Found:
    """Two requests at a time, so that steps are shared."""
    texts: dict[str, list[int]] = {}
    accepted: dict[str, int] = {}
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        for number, prompt in enumerate(PROMPTS):
            stopping = Stopping(NUM_TOKENS, ignore_eos=True)
            request = engine.request_builder.build(prompt, Medusa(), sampling, stopping, f"{name} {number}")
            engine.add_request(request)
            texts[request.id] = []
    while not engine.is_idle:
        for output in engine.step():
            texts[output.request_id] += output.tokens
            accepted[output.request_id] = output.stats.accepted["heads"]
    return list(texts.values()), sum(accepted.values()), lossy_text(engine)


def lossy_text(engine: Engine) -> list[int]:
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    return engine.generate(PROMPTS[1], decode=LOSSY, sampling=SAMPLED, stopping=stopping).token_ids


def on_replicas(mesh: Mesh, channel: Channel, folder: str, heads: str) -> Found:
    torch.set_num_threads(1)
    checkpoint = load(ModelSettings(folder, device="cpu", heads=heads))
    runner = LookaheadParallel(SingleDevice(checkpoint.model, 64), channel)
    return decode(Engine(checkpoint, runner, fingerprints=True))


def on_shards(mesh: Mesh, channel: Channel, folder: str, heads: str, compile: CompileMode = CompileMode.auto) -> Found:
    torch.set_num_threads(1)
    placed = replace(mesh, axes={"tp": mesh.num_ranks})
    with closing(connect_axis(ParallelSettings(timeout_s=20.0), placed, "tp")) as collectives:
        settings = ModelSettings(folder, device="cpu", heads=heads, compile=compile)
        checkpoint = load(settings, reader=read_sharded(collectives), group=collectives)
        alone = TensorParallel(checkpoint.model, collectives, 64)
        runner = LookaheadParallel(alone, channel, mesh.num_ranks)
        return decode(Engine(checkpoint, runner, fingerprints=True))


def on_stages(mesh: Mesh, channel: Channel, folder: str, heads: str, compile: CompileMode = CompileMode.auto) -> Found:
    torch.set_num_threads(1)
    placed = replace(mesh, axes={"pp": mesh.num_ranks})
    with closing(connect_axis(ParallelSettings(timeout_s=20.0), placed, "pp")) as pipeline:
        settings = ModelSettings(folder, device="cpu", heads=heads, compile=compile)
        checkpoint = load(settings, reader=read_stage(pipeline.rank, pipeline.num_ranks), group=pipeline)
        runner = PipelineParallel(checkpoint.model, pipeline, channel, 64)
        return decode(Engine(checkpoint, runner, fingerprints=True))


@pytest.fixture(scope="module")
def heads(llama_reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Folders of heads, by whether they share the model's output embedding."""
    texts = [prompt + generate_greedily(llama_reference, prompt, NUM_TOKENS + 8) for prompt in PROMPTS]
    made = tmp_path_factory.mktemp("heads")
    return {shares: str(fit_heads(llama_reference, texts, made / str(shares), shares)) for shares in (False, True)}


@pytest.fixture(scope="module")
def expected(llama: Engine, llama_reference: PreTrainedModel) -> list[list[int]]:
    texts = [generate_greedily(llama_reference, prompt, NUM_TOKENS) for prompt in PROMPTS]
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    for prompt in PROMPTS:
        plain = llama.generate(prompt, decode=Autoregressive(), sampling=SAMPLED, stopping=stopping)
        texts.append(plain.token_ids)
    return texts


@pytest.mark.parametrize(
    ("run", "num_ranks", "shares_output"),
    [
        (on_replicas, 2, False),
        (on_shards, 2, True),
        (on_stages, 2, True),
        pytest.param(partial(on_shards, compile=CompileMode.on), 2, False, marks=pytest.mark.slow),
        pytest.param(partial(on_stages, compile=CompileMode.on), 2, False, marks=pytest.mark.slow),
        pytest.param(on_replicas, 3, True, marks=pytest.mark.slow),
        pytest.param(on_shards, 3, False, marks=pytest.mark.exhaustive),
        pytest.param(on_stages, 3, False, marks=pytest.mark.exhaustive),
    ],
)
def test_the_text_is_that_of_one_device(
    run: Callable[..., Found],
    num_ranks: int,
    shares_output: bool,
    checkpoint_folder: Callable[[str], Path],
    heads: dict[bool, str],
    expected: list[list[int]],
) -> None:
    folder = str(checkpoint_folder("llama"))
    found = run_ranks(run, num_ranks, folder, heads[shares_output], timeout_s=60)
    for texts, num_accepted, lossy in found:
        assert texts == expected
        assert num_accepted > 10, "hardly a draft was accepted, so equality proves little"
        assert lossy == found[0][-1], "ranks decide alike which drafts are likely enough"
    if run is on_replicas:
        assert found[0][-1] == lossy_text(Engine.from_pretrained(folder, heads=heads[shares_output]))
