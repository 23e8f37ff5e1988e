"""Greedy float32 decoding gives the same tokens as transformers' `generate`, for each architecture, method and size."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.engine.input import RequestBuilder
from lp.request import Completion, DecodingMethod
from lp.runner.single_device import SingleDevice
from tests.models import ARCHITECTURES, ATTENTION_KINDS, CONTEXT, SLIDING_WINDOW, VOCAB_SIZE, generate_greedily
from tests.slow import exhaustive_except, slow_except

GREEDY = Sampling(temperature=0.0, seed=0)
SIZES = [(1, 2, 1), (3, 3, 3), (5, 4, 5), (7, 5, 7), (15, 5, 15)]
METHODS = ["auto", "autoregressive", "jacobi", "prompt_lookup", "lookahead"]
NUM_TOKENS = 32
# Full attention, sliding windows, and a mixture of experts.
QUICK = ("llama", "gemma3", "mixtral")
# Windows, soft-capping, sinks, and positions that are embedded: what the others have is in QUICK.
OTHER_ATTENTION = ("mistral", "gemma2", "gpt_oss", "gpt2")


def settings(method: str, size: tuple[int, int, int]) -> DecodingMethod:
    window, ngram, guesses = size
    kinds: dict[str, DecodingMethod] = {
        "auto": Auto(rows=1 + 3 * window * (ngram - 1), max_window=window, ngram=ngram),
        "autoregressive": Autoregressive(),
        "jacobi": Jacobi(window),
        "prompt_lookup": PromptLookup(ngram, guesses),
        "lookahead": Lookahead(window, ngram, guesses),
    }
    return kinds[method]


def make_prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens in which short pieces recur, so that there is something to look up."""
    rng = random.Random(1000 * seed + length)
    pieces = [[rng.randrange(2, VOCAB_SIZE) for _ in range(6)] for _ in range(5)]
    return [token for _ in range(length) for token in rng.choice(pieces)][:length]


def decode(engine: Engine, prompt: list[int], how: DecodingMethod, num_tokens: int, **stopping) -> list[int]:
    stop = Stopping(max_new_tokens=num_tokens, **{"ignore_eos": True, **stopping})
    return engine.generate(prompt, decode=how, sampling=GREEDY, stopping=stop).token_ids


@pytest.mark.parametrize("architecture", slow_except([*ARCHITECTURES, *ATTENTION_KINDS], *QUICK, "gemma4", "llama4"))
def test_every_architecture_with_every_method(
    architecture: str, engine_of: Callable[[str], Engine], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    engine, reference = engine_of(architecture), reference_of(architecture)
    for length in (1, 70):
        prompt = make_prompt(length)
        expected = generate_greedily(reference, prompt, NUM_TOKENS)
        assert len(expected) == NUM_TOKENS
        for method in METHODS:
            for size in SIZES[3:4] if method == "autoregressive" else (SIZES[1], SIZES[3]):
                assert decode(engine, prompt, settings(method, size), NUM_TOKENS) == expected, (length, method, size)


@pytest.mark.parametrize(
    "architecture",
    exhaustive_except([*ARCHITECTURES, *ATTENTION_KINDS], *OTHER_ATTENTION, *ATTENTION_KINDS, quick=QUICK),
)
def test_every_architecture_with_a_wide_window_and_a_long_prompt(
    architecture: str, engine_of: Callable[[str], Engine], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    prompt = make_prompt(300, seed=2)
    expected = generate_greedily(reference_of(architecture), prompt, NUM_TOKENS)
    for size in (SIZES[0], SIZES[-1]):
        assert decode(engine_of(architecture), prompt, Lookahead(*size), NUM_TOKENS) == expected, size


def test_the_text_is_varied_and_drafts_are_accepted(llama: Engine) -> None:
    """Without this, the tests of equality would prove little."""
    stop = Stopping(200, ignore_eos=True)
    completion = llama.generate(make_prompt(70), decode=Lookahead(), sampling=GREEDY, stopping=stop)
    assert len(set(completion.token_ids)) > 30
    assert completion.stats.tokens_per_step > 1.1


@pytest.mark.parametrize(
    ("method", "size"),
    exhaustive_except(
        [(method, size) for method in METHODS for size in SIZES],
        *((method, SIZES[-1]) for method in METHODS),
        *(("lookahead", size) for size in SIZES[1:-1]),
        quick=[(method, SIZES[0]) for method in METHODS],
    ),
    ids=str,
)
def test_every_size(method: str, size: tuple[int, int, int], llama: Engine, llama_reference: PreTrainedModel) -> None:
    for length in (1, 2, 33):
        prompt = make_prompt(length, seed=1)
        expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
        assert decode(llama, prompt, settings(method, size), NUM_TOKENS) == expected, length


@pytest.mark.parametrize("source", ["window_drafts", "prompt_drafts", "generated_drafts"])
def test_each_source_of_drafts_alone(source: str, llama: Engine, llama_reference: PreTrainedModel) -> None:
    prompt = make_prompt(50)
    sources = {"window_drafts": False, "prompt_drafts": False, "generated_drafts": False, source: True}
    expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
    assert decode(llama, prompt, Lookahead(5, 3, 5, **sources), NUM_TOKENS) == expected


SOURCES_OF_AUTO = ("window_drafts", "suffix_drafts", "recycled_drafts", "shared_drafts")


@pytest.mark.parametrize("source", SOURCES_OF_AUTO)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_source_of_auto_alone(temperature: float, source: str, llama: Engine) -> None:
    """It runs the request twice, as the second run starts with what was learnt in the first."""
    auto = Auto(rows=40, **{name: name == source for name in SOURCES_OF_AUTO})  # type: ignore[arg-type]
    sampling = Sampling(temperature=temperature, seed=5)
    prompt, stopping = make_prompt(50), Stopping(NUM_TOKENS, ignore_eos=True)
    expected = llama.generate(prompt, decode=Autoregressive(), sampling=sampling, stopping=stopping).token_ids
    accepted: Counter[str] = Counter()
    for _ in range(2):
        request = llama.request_builder.build(prompt, auto, sampling, stopping, owner="ann")
        completion = Completion()
        llama.add_request(request)
        while completion.finish_reason is None:
            (output,) = llama.step()
            completion.extend(output)
        assert completion.token_ids == expected
        accepted += completion.stats.accepted
    assert set(accepted) <= {source.removesuffix("_drafts")}
    if temperature == 0 or source == "shared_drafts":
        assert accepted, "no draft was accepted, so equality proves little"


@pytest.mark.parametrize("architecture", slow_except(["llama", "mistral", "gemma2", "gpt2"], "llama", "mistral"))
def test_long_prompts_are_read_in_chunks(
    architecture: str, engine_of: Callable[[str], Engine], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    checkpoint = engine_of(architecture).checkpoint
    for length in (SLIDING_WINDOW + 1, 300, 411):
        prompt = make_prompt(length)
        expected = generate_greedily(reference_of(architecture), prompt, 16)
        for chunk in (7, 64, length - 1, length):
            engine = Engine(checkpoint, SingleDevice(checkpoint.model, chunk), RequestBuilder(checkpoint))
            assert decode(engine, prompt, Lookahead(7, 5, 7), 16) == expected, (length, chunk)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("method", METHODS)
def test_decoding_reaches_the_end_of_the_context(
    method: str,
    architecture: str,
    engine_of: Callable[[str], Engine],
    reference_of: Callable[[str], PreTrainedModel],
) -> None:
    room = 30
    prompt = make_prompt(CONTEXT - room)
    expected = generate_greedily(reference_of(architecture), prompt, room)
    completion = engine_of(architecture).generate(
        prompt, decode=settings(method, (7, 5, 7)), sampling=GREEDY, stopping=Stopping(ignore_eos=True)
    )
    assert completion.token_ids == expected
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("method", METHODS[2:])
def test_an_end_of_sequence_inside_an_accepted_block(
    method: str, engine_of: Callable[[str], Engine], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    """Tokens that were accepted before the last one of a step are made end-of-sequence tokens, one at a time."""
    architecture = "gpt2" if method == "jacobi" else "mistral"
    engine, reference = engine_of(architecture), reference_of(architecture)
    how = settings(method, (7, 5, 7))
    prompt = make_prompt(3 * SLIDING_WINDOW, seed=3)
    if architecture == "mistral":  # text beyond the reach of its sliding window can only be looked up
        prompt = generate_greedily(reference, prompt, 100) + prompt
    stream = engine.stream(prompt, decode=how, sampling=GREEDY, stopping=Stopping(100, ignore_eos=True))
    blocks = [output.tokens for output in stream]
    ends: list[int] = []
    known: set[int] = set()
    for block in blocks:
        ends += [token for token in block[:-1] if token not in known]
        known.update(block)
    assert len(ends) >= 4, "no block is long enough to end inside"
    for end in ends[:4]:
        expected = generate_greedily(reference, prompt, 100, eos=[end])
        stop = Stopping(100, stop_token_ids=[end], ignore_eos=True)
        completion = engine.generate(prompt, decode=how, sampling=GREEDY, stopping=stop)
        assert completion.token_ids == expected
        assert completion.finish_reason == "stop"


def test_the_checkpoint_names_the_tokens_that_end_a_sequence(llama: Engine, llama_reference: PreTrainedModel) -> None:
    prompt = make_prompt(20)
    text = generate_greedily(llama_reference, prompt, NUM_TOKENS)
    ends = [text[9], text[25]]
    expected = generate_greedily(llama_reference, prompt, NUM_TOKENS, eos=ends)
    engine = Engine(replace(llama.checkpoint, eos=ends))
    for method in METHODS:
        how = settings(method, (7, 5, 7))
        assert decode(engine, prompt, how, NUM_TOKENS, ignore_eos=False) == expected
        assert decode(engine, prompt, how, NUM_TOKENS) == text


def test_requests_that_take_turns_do_not_disturb_each_other(llama: Engine, llama_reference: PreTrainedModel) -> None:
    prompts = [make_prompt(length, seed=7) for length in (3, 90, 17)]
    hows = [Lookahead(7, 5, 7), Autoregressive(), Jacobi(4)]
    expected = [generate_greedily(llama_reference, prompt, NUM_TOKENS) for prompt in prompts]
    streams = [
        llama.stream(prompt, decode=how, sampling=GREEDY, stopping=Stopping(NUM_TOKENS, ignore_eos=True))
        for prompt, how in zip(prompts, hows, strict=True)
    ]
    found: list[list[int]] = [[] for _ in prompts]
    running = dict(enumerate(streams))
    while running:
        for number, stream in list(running.items()):
            output = next(stream, None)
            if output is None:
                del running[number]
            else:
                found[number] += output.tokens
    assert found == expected
    assert llama.is_idle
