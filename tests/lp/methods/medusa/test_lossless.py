"""decode=medusa gives the tokens of transformers' greedy `generate`, and with a seed those of plain sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, Engine, Grammar, Lookahead, Medusa, Sampling, Stopping
from lp.request import Completion, DecodingMethod, Request
from tests.heads import fit_heads
from tests.models import CONTEXT, generate_greedily
from tests.slow import slow_except

NUM_TOKENS = 40
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=5)
PROMPTS = [[7], [5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(70)]]
METHODS = [Medusa(), Medusa(max_rows=1), Medusa(max_rows=2, candidates=1), Medusa(max_rows=40, candidates=20)]


@pytest.fixture(scope="module")
def heads_of(
    checkpoint_folder: Callable[[str], Path],
    reference_of: Callable[[str], PreTrainedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """The folder of heads that know the greedy texts after PROMPTS."""

    def make(architecture: str, **how: Any) -> Path:
        reference = reference_of(architecture)
        texts = [prompt + generate_greedily(reference, prompt, NUM_TOKENS + 8) for prompt in PROMPTS]
        return fit_heads(reference, texts, tmp_path_factory.mktemp("heads"), **how)

    return make


@pytest.fixture(scope="module")
def engine(checkpoint_folder: Callable[[str], Path], heads_of: Callable[..., Path]) -> Engine:
    return Engine.from_pretrained(str(checkpoint_folder("llama")), heads=str(heads_of("llama")))


def decode(engine: Engine, prompt: list[int], how: DecodingMethod, sampling: Sampling = GREEDY) -> Completion:
    return engine.generate(prompt, decode=how, sampling=sampling, stopping=Stopping(NUM_TOKENS, ignore_eos=True))


def test_greedy_tokens_are_those_of_generate(engine: Engine, llama_reference: PreTrainedModel) -> None:
    for prompt in PROMPTS:
        expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
        for how in METHODS:
            assert decode(engine, prompt, how).token_ids == expected, how


def test_drafts_are_accepted(engine: Engine) -> None:
    """Without this, the tests of equality would prove little."""
    stats = decode(engine, PROMPTS[2], Medusa()).stats
    assert stats.tokens_per_step > 1.5 and set(stats.accepted) == {"heads"}
    assert decode(engine, PROMPTS[2], Medusa(max_rows=1)).stats.tokens_per_step == 1


@pytest.mark.parametrize("architecture", slow_except(["gemma2", "gpt2", "cohere"], "cohere"))
@pytest.mark.parametrize("compile", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_other_architectures_and_heads_that_share_the_output(
    architecture: str,
    compile: str,
    checkpoint_folder: Callable[[str], Path],
    reference_of: Callable[[str], PreTrainedModel],
    heads_of: Callable[..., Path],
) -> None:
    """Compiled natively, the model has no weights any more but those of the output embedding."""
    folder, heads = str(checkpoint_folder(architecture)), str(heads_of(architecture, shares_output=True))
    engine = Engine.from_pretrained(folder, heads=heads, compile=compile)
    num_accepted = 0
    for prompt in PROMPTS:
        completion = decode(engine, prompt, Medusa())
        assert completion.token_ids == generate_greedily(reference_of(architecture), prompt, NUM_TOKENS)
        num_accepted += completion.stats.accepted.total()
    assert num_accepted


@pytest.mark.slow
def test_heads_that_share_a_quantised_output(
    checkpoint_folder: Callable[[str], Path], heads_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Compiled natively, the model has no weights any more; those of its output are unpacked for the heads."""
    heads = str(heads_of("llama", shares_output=True))
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), heads=heads, compile="on", weights="int8")
    plain, drafted = (decode(engine, PROMPTS[2], how) for how in (Autoregressive(), Medusa()))
    assert drafted.token_ids == plain.token_ids and drafted.stats.accepted.total()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SAMPLED, id=""),
        pytest.param(replace(SAMPLED, repetition_penalty=1.2, logprobs=2), id="more"),
    ],
)
@pytest.mark.slow
def test_a_seed_gives_the_text_of_plain_sampling(engine: Engine, settings: Sampling) -> None:
    for prompt in PROMPTS:
        expected = decode(engine, prompt, Autoregressive(), settings)
        for how in METHODS:
            found = decode(engine, prompt, how, settings)
            assert found.token_ids == expected.token_ids
            assert (found.logprobs is None) == (settings.logprobs is None)


def test_typical_acceptance_changes_sampled_text_alone_and_says_so(engine: Engine) -> None:
    lossy = Medusa(verify="typical", exact=False, epsilon=0.001, candidates=20, max_rows=60)
    exact = replace(lossy, verify="exact", exact=True)
    assert decode(engine, PROMPTS[2], lossy).token_ids == decode(engine, PROMPTS[2], exact).token_ids
    flat = replace(SAMPLED, temperature=3.0)
    found, plain = (decode(engine, PROMPTS[2], how, flat) for how in (lossy, exact))
    assert found.token_ids != plain.token_ids and found.stats.accepted.total() > plain.stats.accepted.total()
    assert found.stats.lossy == found.stats.to_dict()["lossy"] == "typical"
    assert not plain.stats.lossy and "lossy" not in plain.stats.to_dict()


def test_a_mixed_batch_has_the_text_of_each_by_itself(engine: Engine) -> None:
    kinds: list[DecodingMethod] = [Medusa(), Auto(rows=12), Medusa(max_rows=30), Autoregressive(), Lookahead(4, 3, 4)]
    requests: list[Request] = []
    for number in range(10):
        sampling, prompt = (GREEDY, SAMPLED)[number % 2], PROMPTS[number % 3]
        build = engine.request_builder.build
        requests.append(build(prompt, kinds[number % 5], sampling, Stopping(20 + number), request_id=str(number)))
    alone = {one.id: run(engine, [replace(one, decode=Autoregressive())])[one.id].token_ids for one in requests}
    together = run(engine, requests)
    assert {name: found.token_ids for name, found in together.items()} == alone
    assert sum(found.stats.accepted["heads"] for found in together.values()) > 10


def run(engine: Engine, requests: list[Request]) -> dict[str, Completion]:
    """Serves requests together to their ends."""
    found = {request.id: Completion() for request in requests}
    for request in requests:
        engine.add_request(request)
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id].extend(output)
    return found


def test_a_request_goes_on_from_its_tokens(engine: Engine, llama_reference: PreTrainedModel) -> None:
    """As after the loss of a rank: the decoder begins without guesses, and the text is the same."""
    prompt = PROMPTS[1]
    expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    for num_known in (1, 7, NUM_TOKENS - 1):
        request = engine.request_builder.build(prompt, Medusa(), GREEDY, stopping)
        (replayed,) = engine.resume(engine.runner, [(request, expected[:num_known])], None)
        completion = Completion()
        completion.extend(replayed)
        while not completion.finish_reason:
            for output in engine.step():
                completion.extend(output)
        assert completion.token_ids == expected


def test_the_end_of_the_context(engine: Engine, llama_reference: PreTrainedModel) -> None:
    prompt = [(3 + 7 * i) % 41 + 2 for i in range(CONTEXT - 12)]
    completion = engine.generate(prompt, decode=Medusa(), sampling=GREEDY, stopping=Stopping(ignore_eos=True))
    assert completion.token_ids == generate_greedily(llama_reference, prompt, 12)


def test_prompt_scores_and_a_trace_come_as_without_heads(engine: Engine) -> None:
    sampling, stopping = replace(GREEDY, prompt_logprobs=1), Stopping(12, ignore_eos=True)
    found, plain = (
        engine.generate(PROMPTS[2], decode=how, sampling=sampling, stopping=stopping, trace=True)
        for how in (Medusa(), Autoregressive())
    )
    assert found.token_ids == plain.token_ids and found.prompt_logprobs is not None
    assert [one.token for one in found.prompt_logprobs] == [one.token for one in plain.prompt_logprobs or []]
    assert {letter for step in found.trace for letter in step.sources} == {"r", "e"}


def test_a_grammar_holds_and_gives_the_text_of_plain_decoding(engine: Engine) -> None:
    grammar = Grammar("regex", "(x = [a-f]{1,3}\n    ){2,6}return")
    texts = [
        engine.generate(PROMPTS[1], decode=how, sampling=sampling, grammar=grammar, max_new_tokens=60).text
        for sampling in (GREEDY, SAMPLED)
        for how in (Autoregressive(), Medusa())
    ]
    assert texts[0] == texts[1] and texts[2] == texts[3] and texts[0].endswith("return")
