"""decode=draft_model: the same tokens as without drafts, alone and in mixed batches, and drafts that are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, DraftModel, Engine, Lookahead, Sampling, SecondModel, Stopping
from lp.grammar.settings import Grammar
from lp.methods.draft_model import rounds
from lp.request import Completion
from lp.runner.single_device import SingleDevice
from lp.sampling import couplings
from tests.lp.test_lossless import make_prompt
from tests.models import generate_greedily, save_checkpoint
from tests.slow import exhaustive_except, slow_except

EngineOf = Callable[[str], Engine]
FolderOf = Callable[[str], Path]
DRAFTS = ["itself", "another", "first layers", "4 bits"]
SIZES = [DraftModel(), DraftModel(rows=12), DraftModel(depth=2, rows=4), DraftModel(depth=8, rows=40)]
NUM_TOKENS = 32
STOPPING = Stopping(NUM_TOKENS, ignore_eos=True)
# Requests that share steps where many are drawn.
AT_ONCE = 50
GREEDY = Sampling(temperature=0.0, seed=0)
SAMPLED = [
    Sampling(temperature=0.8, seed=5),
    Sampling(temperature=1.0, top_k=20, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.4, seed=7),
    Sampling(temperature=0.7, no_repeat_ngram=3, logit_bias={7: 2.0}, min_p=0.05, seed=9),
]


def tokens_of(engine: Engine, prompt: list[int], decode, sampling: Sampling) -> Completion:
    return engine.generate(prompt, decode=decode, sampling=sampling, stopping=STOPPING)


@pytest.mark.parametrize("draft", slow_except(DRAFTS, "first layers", "4 bits"))
def test_greedy_tokens_are_those_of_generate(draft: str, drafting: EngineOf, llama_reference: PreTrainedModel) -> None:
    for prompt, decodes in (([7], SIZES[1:2]), (make_prompt(70), [*SIZES, DraftModel(verify="rejection", depth=3)])):
        expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
        for decode in decodes:
            assert tokens_of(drafting(draft), prompt, decode, GREEDY).token_ids == expected, (len(prompt), decode)


@pytest.mark.parametrize(
    ("draft", "sampling"),
    exhaustive_except(
        [(draft, sampling) for draft in DRAFTS for sampling in SAMPLED],
        ("itself", SAMPLED[2]),
        ("another", SAMPLED[0]),
        ("another", SAMPLED[1]),
        quick=[("first layers", SAMPLED[0]), ("first layers", SAMPLED[1]), ("4 bits", SAMPLED[2])],
    ),
)
def test_sampled_tokens_are_those_of_plain_sampling(draft: str, sampling: Sampling, drafting: EngineOf) -> None:
    prompt, engine = make_prompt(50), drafting(draft)
    expected = tokens_of(engine, prompt, Autoregressive(), sampling).token_ids
    for decode in SIZES:
        assert tokens_of(engine, prompt, decode, sampling).token_ids == expected, decode


@pytest.mark.parametrize("sampling", [GREEDY, *SAMPLED], ids=range(1 + len(SAMPLED)))
def test_drafts_of_the_model_itself_are_all_accepted(sampling: Sampling, drafting: EngineOf) -> None:
    """The second model draws with the noise of the positions, so it draws what the model draws."""
    stats = tokens_of(drafting("itself"), make_prompt(40), DraftModel(rows=24), sampling).stats
    assert stats.steps <= 5
    assert stats.accepted["draft_model"] == NUM_TOKENS - stats.steps


def test_a_worse_draft_is_accepted_less(drafting: EngineOf) -> None:
    speeds = [
        tokens_of(drafting(draft), make_prompt(40), DraftModel(rows=24), GREEDY).stats.tokens_per_step
        for draft in ("itself", "first layers", "another")
    ]
    assert speeds[0] > speeds[1] > 1.2 > speeds[2]


def test_rejection_accepts_what_the_model_itself_drafts(drafting: EngineOf) -> None:
    decode = DraftModel(depth=4, verify="rejection")
    stats = tokens_of(drafting("itself"), make_prompt(40), decode, SAMPLED[0]).stats
    assert stats.tokens_per_step > 4


def run_all(
    engine: Engine, prompts: list[list[int]], sampling: Sampling, decodes: list, stopping: Stopping = STOPPING,
    first_seed: int = 0,
) -> list[list[int]]:  # fmt: skip
    done = {f"{number}": Completion() for number in range(len(prompts))}
    for number, (prompt, decode) in enumerate(zip(prompts, decodes, strict=True)):
        own = replace(sampling, seed=first_seed + number)
        engine.add_request(engine.request_builder.build(prompt, decode, own, stopping, f"{number}"))
    while not engine.is_idle:
        for output in engine.step():
            done[output.request_id].extend(output)
    return [completion.token_ids for completion in done.values()]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
def test_mixed_batches(sampling: Sampling, drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "CHUNK", 24)  # long prompts are read over several steps
    engine = Engine(drafting("first layers").checkpoint)
    prompts = [make_prompt(length, seed=length) for length in (3, 90, 40, 25, 61)]
    decodes = [DraftModel(), DraftModel(rows=8), Auto(rows=12), Lookahead(3, 4, 3), DraftModel(depth=3, rows=20)]
    expected = [
        tokens_of(engine, prompt, Autoregressive(), replace(sampling, seed=number)).token_ids
        for number, prompt in enumerate(prompts)
    ]
    assert run_all(engine, prompts, sampling, decodes) == expected


def test_sequences_of_a_step_draft_in_the_same_forwards(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(drafting("itself").checkpoint)
    second, sizes = engine.checkpoint.extensions["draft"].model, list[int]()
    real = second.forward_many
    monkeypatch.setattr(second, "forward_many", lambda given: (sizes.append(len(given)), real(given))[1])
    run_all(engine, [make_prompt(20, seed) for seed in range(3)], GREEDY, [DraftModel(rows=8)] * 3)
    assert sizes.count(3) > len(sizes) / 2


def test_a_draft_that_costs_as_much_as_the_model_is_used_rarely(drafting: EngineOf) -> None:
    """Its forwards take as long as steps, so even right drafts gain nothing."""
    checkpoint = drafting("itself").checkpoint
    assert checkpoint.extensions["draft"].relative_cost == 1.0
    stats = tokens_of(Engine(checkpoint), make_prompt(20), DraftModel(), GREEDY).stats
    assert stats.proposed["draft_model"] <= 8
    draft = replace(checkpoint.extensions["draft"], relative_costs=(0.05,) * 4)
    cheap = replace(checkpoint, extensions={"draft": draft})
    assert tokens_of(Engine(cheap), make_prompt(20), DraftModel(), GREEDY).stats.tokens_per_step > 4


def test_little_memory_for_the_drafts_keys_and_values(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences for which there is no room get no drafts; evicted ones are read again."""
    engine = Engine(drafting("itself").checkpoint)
    prompts, decodes = [make_prompt(60, seed) for seed in range(4)], [DraftModel(rows=8)] * 4
    expected = run_all(engine, prompts, GREEDY, decodes)
    monkeypatch.setattr(engine.checkpoint.extensions["draft"].model.memory, "num_pages", 12)
    assert run_all(engine, prompts, GREEDY, decodes) == expected


def test_a_token_that_the_draft_has_no_weights_for(checkpoint_folder: FolderOf, tmp_path: Path) -> None:
    padded = save_checkpoint(tmp_path / "padded", vocab_size=310)
    engine = Engine.from_pretrained(
        str(padded), device="cpu", step_times="off", draft=SecondModel(str(checkpoint_folder("llama")))
    )
    prompt = [5, 305, 9]
    expected = tokens_of(engine, prompt, Autoregressive(), GREEDY).token_ids
    done = tokens_of(engine, prompt, DraftModel(rows=8), GREEDY)
    assert done.token_ids == expected and not done.stats.proposed["draft_model"]


def test_a_grammar_around_it(drafting: EngineOf) -> None:
    engine, grammar = drafting("itself"), Grammar("regex", "[a-f]{4,20}")
    settings = {"sampling": GREEDY, "stopping": Stopping(24), "grammar": grammar}
    expected = engine.generate("def ", decode=Autoregressive(), **settings).text
    assert engine.generate("def ", decode=DraftModel(rows=8), **settings).text == expected


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("decode", [DraftModel(rows=10), DraftModel(depth=3, verify="rejection")], ids=["exact", "rej"])
def test_a_request_is_resumed(decode: DraftModel, sampling: Sampling, drafting: EngineOf) -> None:
    """The second model's keys and values are computed anew from the tokens."""
    checkpoint = drafting("first layers").checkpoint
    prompt = make_prompt(30)
    expected = tokens_of(Engine(checkpoint), prompt, Autoregressive(), sampling).token_ids
    for num_known in (0, 1, 17):
        runner = SingleDevice(checkpoint.model)
        engine = Engine(checkpoint, runner)
        request = engine.request_builder.build(prompt, decode, sampling, STOPPING, "it")
        engine.add_request(request)
        engine.step()
        (replayed,) = engine.resume(runner, [(request, expected[:num_known])], None)
        done = Completion()
        done.extend(replayed)
        while done.finish_reason is None:
            (output,) = engine.step()
            done.extend(output)
        is_exact = decode.verify == "exact" or not sampling.temperature
        assert (done.token_ids == expected) if is_exact else done.token_ids[:num_known] == expected[:num_known]


def test_traces_name_the_source(drafting: EngineOf) -> None:
    done = drafting("itself").generate(
        make_prompt(20), decode=DraftModel(rows=6), sampling=GREEDY, stopping=Stopping(8, ignore_eos=True), trace=True
    )
    assert {letter for step in done.trace for letter in step.sources} == {"r", "d"}


@pytest.mark.slow
@pytest.mark.parametrize("with_bias", [False, True], ids=["right", "biased"])
def test_rejection_keeps_the_distribution_of_texts(
    with_bias: bool, drafting: EngineOf, llama_reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi square of the first two tokens against exact probabilities. Accepting every draft fails the same test."""
    if with_bias:
        monkeypatch.setattr(couplings, "decide", lambda model, proposal, row, draws: proposal.tokens[0])
    prompt, decode, number, top_k = make_prompt(12), DraftModel(depth=2, verify="rejection"), 400, 3
    with torch.no_grad():
        first = llama_reference(torch.tensor([prompt])).logits[0, -1].topk(top_k)
        inputs = torch.tensor([[*prompt, token] for token in first.indices.tolist()])
        second = llama_reference(inputs).logits[:, -1].topk(top_k)
    shares = first.values.softmax(0)[:, None] * second.values.softmax(1)
    expected = {
        (int(token), int(after)): float(share) * number
        for token, row, of_row in zip(first.indices, second.indices, shares, strict=True)
        for after, share in zip(row, of_row, strict=True)
    }
    engine, observed = Engine(drafting("another").checkpoint), Counter[tuple[int, ...]]()
    for first_seed in range(0, number, AT_ONCE):
        sampling, stopping = Sampling(temperature=1.0, top_k=top_k), Stopping(3, ignore_eos=True)
        texts = run_all(engine, [prompt] * AT_ONCE, sampling, [decode] * AT_ONCE, stopping, first_seed)
        observed += Counter(tuple(tokens[:2]) for tokens in texts)
    surprising = sum(count for pair, count in observed.items() if pair not in expected)
    chi_square = sum((observed[pair] - mean) ** 2 / mean for pair, mean in expected.items())
    is_right = not surprising and chi_square < 26.12  # exceeded once in a thousand times, 8 degrees of freedom
    assert is_right != with_bias, (surprising, chi_square)
