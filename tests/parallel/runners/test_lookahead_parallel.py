"""Lookahead parallelism on real ranks gives the same tokens as transformers' greedy `generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling
from lp.model.checkpoint import ModelSettings, load
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from parallel.comm.channel import Channel
from parallel.errors import StateDiverged
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

WINDOWS = [(1, 2, 1), (5, 4, 5), (15, 5, 15)]
METHODS: list[DecodingMethod] = [
    Auto(rows=40, max_window=5, ngram=4),
    Autoregressive(),
    Jacobi(window=6),
    Jacobi(window="auto"),
    PromptLookup(ngram=4, guesses=5),
    *(Lookahead(*window) for window in WINDOWS),
]
NEW_TOKENS = 24
PROMPTS = [[7], [5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(150)]]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.3, seed=11, logprobs=2)


def parallel_engine(channel: Channel, folder: str, prefill_chunk: int = 64) -> Engine:
    torch.set_num_threads(1)
    checkpoint = load(ModelSettings(path=folder, device="cpu"))
    runner = LookaheadParallel(SingleDevice(checkpoint.model, prefill_chunk), channel)
    return Engine(checkpoint, runner, fingerprints=True)


def all_methods(mesh: Mesh, channel: Channel, folder: str) -> list[list[int]]:
    engine = parallel_engine(channel, folder)
    greedy = Sampling(temperature=0.0, seed=3)
    return [
        engine.generate(prompt, max_new_tokens=NEW_TOKENS, decode=decode, sampling=greedy).token_ids
        for decode in METHODS
        for prompt in PROMPTS
    ]


def sampled(mesh: Mesh, channel: Channel, folder: str) -> list[tuple[list[int], list[float]]]:
    """For each method, the sampled tokens and their log-probabilities."""
    engine = parallel_engine(channel, folder)
    results = []
    for decode in METHODS[:5]:
        completion = engine.generate(PROMPTS[1], max_new_tokens=NEW_TOKENS, decode=decode, sampling=SAMPLED)
        assert completion.logprobs
        results.append((completion.token_ids, [entry.logprob for entry in completion.logprobs]))
    return results


@pytest.fixture(scope="module")
def expected(checkpoint_folder: Callable[[str], Path]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(checkpoint_folder("llama"), dtype=torch.float32)
    outputs = []
    for prompt in PROMPTS:
        generated = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        outputs.append(generated[0, len(prompt) :].tolist())
    return outputs * len(METHODS)


@pytest.mark.parametrize(
    ("num_ranks", "exchange"),
    exhaustive_except(
        [(1, "auto"), (2, "shm"), (2, "gloo"), (3, "shm"), (3, "gloo"), (4, "shm"), (4, "gloo")],
        (1, "auto"),
        (3, "gloo"),
        (4, "shm"),
        quick=[(2, "shm")],
    ),
)
def test_greedy_tokens_are_those_of_generate(
    num_ranks: int, exchange: str, checkpoint_folder: Callable[[str], Path], expected: list[list[int]]
) -> None:
    for tokens in run_ranks(all_methods, num_ranks, str(checkpoint_folder("llama")), exchange=exchange, timeout_s=60):
        assert tokens == expected


WORDS = Sampling(0.0, seed=3, bad_words=[[7], *([first, 9] for first in range(2, 60))], allowed_token_ids=[*range(60)])


def masked(mesh: Mesh, channel: Channel, folder: str) -> list[list[int]]:
    """For each method, what greedy decoding without some words, and of some tokens alone, yields."""
    engine = parallel_engine(channel, folder)
    return [
        engine.generate(prompt, max_new_tokens=NEW_TOKENS, decode=decode, sampling=WORDS).token_ids
        for decode in METHODS[:6]
        for prompt in PROMPTS[1:]
    ]


@pytest.mark.parametrize("num_ranks", exhaustive_except([1, 2, 4], 4, quick=[2]))
def test_bad_words_and_allowed_tokens_are_those_of_generate(
    num_ranks: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint_folder("llama"), dtype=torch.float32)
    expected = [
        model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, bad_words_ids=WORDS.bad_words,
            prefix_allowed_tokens_fn=lambda batch, ids: WORDS.allowed_token_ids,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS[1:]
    ]  # fmt: skip
    for tokens in run_ranks(masked, num_ranks, str(checkpoint_folder("llama")), timeout_s=60):
        assert tokens == expected * 6


@pytest.mark.parametrize("architecture", exhaustive_except(["mistral", "gemma2", "gpt2"], "gemma2"))
def test_other_architectures_on_two_ranks(architecture: str, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder(architecture))
    alone = run_ranks(all_methods, 1, folder)[0]
    assert run_ranks(all_methods, 2, folder, timeout_s=60) == [alone, alone]


@pytest.mark.slow
def test_a_seed_gives_the_same_text_on_any_number_of_ranks(
    checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    alone = llama.generate(PROMPTS[1], max_new_tokens=NEW_TOKENS, decode=Autoregressive(), sampling=SAMPLED)
    assert alone.logprobs
    for num_ranks in (2, 4):
        for results in run_ranks(sampled, num_ranks, str(checkpoint_folder("llama"))):
            for tokens, logprobs in results:
                assert tokens == alone.token_ids
                np.testing.assert_allclose(logprobs, [entry.logprob for entry in alone.logprobs], atol=1e-4)


def count_collectives(mesh: Mesh, channel: Channel, folder: str) -> tuple[int, int, int]:
    """Steps of one request, collectives in them, and bytes that this rank sent."""
    engine = parallel_engine(channel, folder)
    before = channel.traffic.num_collectives, channel.traffic.bytes_sent
    stats = engine.generate(
        PROMPTS[2], max_new_tokens=NEW_TOKENS, decode=Lookahead(15, 5, 15), sampling=Sampling(seed=3)
    ).stats
    return stats.steps, channel.traffic.num_collectives - before[0], channel.traffic.bytes_sent - before[1]


def test_a_step_needs_one_exchange_of_a_few_hundred_bytes(checkpoint_folder: Callable[[str], Path]) -> None:
    for steps, collectives, num_bytes in run_ranks(count_collectives, 2, str(checkpoint_folder("llama"))):
        assert collectives == steps
        assert num_bytes / steps < 1024


def diverging(mesh: Mesh, channel: Channel, folder: str, what: str) -> tuple[int, int]:
    """Gives every rank another seed for its window, or rank 0 another text. The rank and step that are reported."""
    engine = parallel_engine(channel, folder)
    seed = mesh.rank if what == "window" else 0
    prompt = PROMPTS[2] if what == "window" or mesh.rank == 0 else [8, *PROMPTS[2][1:]]
    decode = Lookahead() if what == "window" else Autoregressive()
    with pytest.raises(StateDiverged) as caught:
        engine.generate(prompt, max_new_tokens=NEW_TOKENS, decode=decode, sampling=Sampling(0.0, seed=seed))
    return caught.value.rank, caught.value.step


@pytest.mark.parametrize("what", ["window", "text"])
def test_a_diverging_rank_is_named_with_its_first_step(what: str, checkpoint_folder: Callable[[str], Path]) -> None:
    assert run_ranks(diverging, 3, str(checkpoint_folder("llama")), what) == [(1, 1)] * 3
