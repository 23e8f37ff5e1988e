"""One seed gives one text whatever the method, and logits are processed as by transformers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, RepetitionPenaltyLogitsProcessor

from lp import Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.sampling.sampler import Sampler
from lp.tree import TreeBuilder
from tests.models import EOS, VOCAB_SIZE, generate_greedily
from tests.slow import slow_except

PROMPT = random.Random(5).choices(range(2, VOCAB_SIZE), k=12) * 3
DRAFTING = [
    Jacobi(6),
    PromptLookup(3, 5),
    Lookahead(1, 2, 1),
    Lookahead(3, 3, 3),
    Lookahead(5, 4, 5),
    Lookahead(7, 5, 7),
    Lookahead(15, 5, 15),
]
PROCESSORS = {
    "top_k": Sampling(top_k=5),
    "top_p": Sampling(top_p=0.6),
    "min_p": Sampling(min_p=0.2),
    "repetition_penalty": Sampling(repetition_penalty=1.8),
    "presence_penalty": Sampling(presence_penalty=1.5),
    "frequency_penalty": Sampling(frequency_penalty=1.2),
    "no_repeat_ngram": Sampling(no_repeat_ngram=1),
    "logit_bias": Sampling(logit_bias={5: 4.0, 9: 4.5, 77: -100.0}),
    "min_new_tokens": Sampling(min_new_tokens=20, logit_bias={EOS: 6.0}),
    "bad_words": Sampling(bad_words=[[5], [297, 120], [120, 3, 276]]),
    "allowed_token_ids": Sampling(allowed_token_ids=[*range(1, VOCAB_SIZE, 3)]),
    "all": Sampling(
        top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5,
        no_repeat_ngram=3, logit_bias={5: 2.0},
    ),
}  # fmt: skip


ALLOWED = [*range(1, VOCAB_SIZE, 3)]
# Pairs, and some longer words: random models say many of them.
BAD_WORDS = [[first, second] for first in range(2, VOCAB_SIZE) for second in range(first % 3 + 2, VOCAB_SIZE, 3)]
BAD_WORDS = [[7], [11, 12, 13], *random.Random(1).sample(BAD_WORDS, 900)]


def name_of(how: object) -> str:
    """A test's id: the method and its first three settings."""
    return type(how).__name__ + "".join(f"-{value}" for value in list(vars(how).values())[:3])


@pytest.mark.parametrize("how", DRAFTING, ids=name_of)
@pytest.mark.parametrize("temperature", slow_except([0.3, 1.0], 1.0))
def test_one_seed_gives_the_same_tokens_by_every_method(temperature: float, how, llama: Engine) -> None:
    for seed in (0, 1):
        sampling = Sampling(temperature=temperature, seed=seed)
        stop = Stopping(25, ignore_eos=True)
        expected = llama.generate(PROMPT, decode=Autoregressive(), sampling=sampling, stopping=stop)
        found = llama.generate(PROMPT, decode=how, sampling=sampling, stopping=stop)
        assert found.token_ids == expected.token_ids


def test_seeds_give_different_texts_unless_temperature_is_zero(llama: Engine) -> None:
    def text(temperature: float, seed: int) -> list[int]:
        sampling = Sampling(temperature=temperature, seed=seed)
        return llama.generate(PROMPT, sampling=sampling, stopping=Stopping(12, ignore_eos=True)).token_ids

    assert len({tuple(text(1.0, seed)) for seed in range(5)}) == 5
    assert text(0.0, 1) == text(0.0, 2)


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_see_each_rows_own_path(name: str, llama: Engine) -> None:
    """With each processor, drafting gives the tokens of plain decoding, and others than without the processor."""
    sampling = dataclasses.replace(PROCESSORS[name], temperature=1.2, seed=3)
    stop = Stopping(30)
    expected = llama.generate(PROMPT, decode=Autoregressive(), sampling=sampling, stopping=stop)
    for how in (Jacobi(6), PromptLookup(3, 5), Lookahead(7, 5, 7)):
        assert llama.generate(PROMPT, decode=how, sampling=sampling, stopping=stop).token_ids == expected.token_ids
    without = llama.generate(PROMPT, sampling=Sampling(temperature=1.2, seed=3), stopping=stop)
    assert without.token_ids != expected.token_ids
    if name == "min_new_tokens":
        assert len(expected.token_ids) > 20 and EOS not in expected.token_ids[:20]


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [
        (Sampling(repetition_penalty=1.5), {"repetition_penalty": 1.5}),
        (Sampling(no_repeat_ngram=1), {"no_repeat_ngram_size": 1}),
        (Sampling(no_repeat_ngram=3), {"no_repeat_ngram_size": 3}),
        (Sampling(logit_bias={5: 3.0, 6: 2.5}), {"sequence_bias": [[[5], 3.0], [[6], 2.5]]}),
        (Sampling(min_new_tokens=9, logit_bias={EOS: 9.0}), {"min_new_tokens": 9, "sequence_bias": [[[EOS], 9.0]]}),
        (
            Sampling(repetition_penalty=1.3, no_repeat_ngram=2, logit_bias={8: 4.0}),
            {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "sequence_bias": [[[8], 4.0]]},
        ),
        (Sampling(bad_words=BAD_WORDS), {"bad_words_ids": BAD_WORDS}),
        (
            Sampling(allowed_token_ids=ALLOWED, bad_words=BAD_WORDS, repetition_penalty=1.2),
            {
                "prefix_allowed_tokens_fn": lambda batch, ids: ALLOWED,
                "bad_words_ids": BAD_WORDS,
                "repetition_penalty": 1.2,
            },
        ),
    ],
    ids=["repetition", "no_repeat_1", "no_repeat_3", "bias", "min_new_tokens", "several", "bad_words", "allowed"],
)
def test_greedy_text_with_processors_is_that_of_generate(
    sampling: Sampling, settings: dict, llama: Engine, llama_reference: PreTrainedModel
) -> None:
    sampling = dataclasses.replace(sampling, temperature=0.0)
    for prompt in (PROMPT, PROMPT[:1]):
        expected = generate_greedily(llama_reference, prompt, 24, eos=[EOS], **settings)
        for how in (Autoregressive(), PromptLookup(3, 5), Lookahead(7, 5, 7)):
            found = llama.generate(prompt, decode=how, sampling=sampling, stopping=Stopping(24))
            assert found.token_ids == expected


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [
        (Sampling(temperature=0.7), {"temperature": 0.7}),
        (Sampling(temperature=1.0, top_k=9), {"top_k": 9}),
        (Sampling(temperature=1.5, top_p=0.5), {"temperature": 1.5, "top_p": 0.5}),
        (Sampling(temperature=0.8, min_p=0.1), {"temperature": 0.8, "min_p": 0.1}),
        (
            Sampling(temperature=0.9, top_k=30, top_p=0.8, min_p=0.05, repetition_penalty=1.4, no_repeat_ngram=2),
            {
                "temperature": 0.9, "top_k": 30, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.4,
                "no_repeat_ngram_size": 2,
            },
        ),
        (
            Sampling(temperature=1.0, min_new_tokens=3, logit_bias={4: 1.5}),
            {"min_new_tokens": 3, "sequence_bias": {(4,): 1.5}},
        ),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "several", "bias"],
)  # fmt: skip
def test_scores_are_those_of_generate(sampling: Sampling, settings: dict, llama_reference: PreTrainedModel) -> None:
    """One tree holds all positions of a text that transformers sampled; its scores are transformers' own."""
    llama_reference.generation_config.eos_token_id = [EOS]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        output = llama_reference.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            max_new_tokens=6,
            do_sample=True,
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
            **{"top_k": 0, **settings},
        )
    text = output.sequences[0, len(PROMPT) :].tolist()
    builder = TreeBuilder(PROMPT[-1])
    row = 0
    for token in text[:-1]:
        builder.add(token + 1, row)  # a sibling, which must not be seen
        row = builder.add(token, row)
    tree = builder.build()
    rows = tree.path(row)
    logits = torch.zeros(len(tree), VOCAB_SIZE)
    logits[rows] = torch.cat(output.logits).float()
    complete = dataclasses.replace(sampling, seed=0).with_defaults(llama_reference.generation_config)
    sampler = Sampler(complete, len(PROMPT), [EOS], VOCAB_SIZE, "cpu")
    found = sampler.scores(logits, tree, PROMPT)[rows]
    torch.testing.assert_close(found, torch.cat(output.scores), rtol=1e-6, atol=1e-6)


def test_repetition_penalty_is_that_of_transformers() -> None:
    """Paths have several depths and logits both signs; the logits themselves are left unchanged."""
    logits = torch.randn(7, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    before = logits.clone()
    builder = TreeBuilder(PROMPT[-1])
    rows = [0]
    for token in (5, 6, 7, 5, 6, 9):
        rows.append(builder.add(token, rows[token % len(rows)]))
    tree = builder.build()
    sampling = Sampling(repetition_penalty=1.7, seed=0).with_defaults(GenerationConfig())
    found = Sampler(sampling, len(PROMPT), [], VOCAB_SIZE, "cpu").scores(logits, tree, PROMPT)
    penalty = RepetitionPenaltyLogitsProcessor(1.7)
    for row in rows:
        path = torch.tensor([PROMPT + tree.tokens[tree.path(row)[1:]].tolist()])
        assert torch.equal(found[row], penalty(path, before[row : row + 1])[0])
    assert torch.equal(logits, before)


def test_penalties_count_the_output_alone() -> None:
    """OpenAI's definition: mu[j] -= count[j] * frequency + (count[j] > 0) * presence."""
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, seed=0).with_defaults(GenerationConfig())
    builder = TreeBuilder(4)
    seen = builder.add(4, builder.add(2, 0))
    builder.add(3, 0)
    scores = Sampler(sampling, 2, [], 6, "cpu").scores(torch.zeros(4, 6), builder.build(), [1, 2, 4])
    assert scores[0].tolist() == [0, 0, 0, 0, -0.75, 0]
    assert scores[seen].tolist() == [0, 0, -0.75, 0, -1.0, 0]
    assert scores[3].tolist() == [0, 0, 0, -0.75, -0.75, 0]


def test_a_model_that_answers_nan_is_refused(checkpoint_folder: Callable[[str], Path]) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu")
    head = engine.checkpoint.model.model.get_output_embeddings()
    weight = head.weight.detach().clone()
    head.weight.data[7] = float("nan")
    with pytest.raises(FloatingPointError, match=r"not a number \(NaN\); try dtype=float32"):
        engine.generate([3, 4, 5], max_new_tokens=4)
    assert engine.is_idle
    head.weight.data.copy_(weight)
    assert len(engine.generate([3, 4, 5], max_new_tokens=4).token_ids) == 4
