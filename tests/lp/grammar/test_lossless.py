"""Under a grammar, every method yields the text of masked plain decoding, token by token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from llguidance.hf import from_tokenizer
from transformers import LogitsProcessor, PreTrainedModel

from benchmarks.structured.schemas import make_schema
from lp import Auto, Autoregressive, Engine, Grammar, Jacobi, Lookahead, PromptLookup, Sampling
from lp.grammar.with_llguidance import JSON_OPTIONS
from tests.lp.drafting.reference.drafter import ReferenceDrafters
from tests.models import EOS, generate_greedily
from tests.slow import exhaustive_except

METHODS = [Auto(), Auto(rows=24), Auto(max_rows=6), Lookahead(5, 4, 5), PromptLookup(), Jacobi(6)]
GRAMMARS = [
    Grammar.json_object(),
    Grammar("regex", "(ab|c){3,9}[0-9]*x"),
    Grammar.choice(["return first", "return second"]),
    Grammar("grammar", 'start: "(" start ")" | "x"'),
    *(Grammar.json_schema(make_schema(seed)) for seed in range(6)),
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_p": 0.8, "top_k": 30},
    {"temperature": 1.2, "min_p": 0.02, "frequency_penalty": 0.4},
    {"temperature": 0.0, "repetition_penalty": 1.3, "no_repeat_ngram": 6, "min_new_tokens": 20},
]


class Masked(LogitsProcessor):
    """Masks as they are applied to one text without a tree: llguidance's alone, from the whole text each time."""

    def __init__(self, engine: Engine, schema: Any, prompt_length: int):
        self._trie = from_tokenizer(engine.checkpoint.tokenizer, n_vocab=engine.checkpoint.vocab_size, eos_token=[EOS])
        self._grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=JSON_OPTIONS)  # type: ignore
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        matcher = llguidance.LLMatcher(self._trie, self._grammar, log_level=0)
        assert matcher.consume_tokens(input_ids[0, self._prompt_length :].tolist())
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        return scores.masked_fill(torch.from_numpy(allowed[: scores.shape[1]]) == 0, -torch.inf)


@pytest.mark.parametrize("seed", exhaustive_except(range(8), 3, 4, quick=range(2)))
def test_greedy_text_is_that_of_generate_with_masks(seed: int, llama: Engine, llama_reference: PreTrainedModel) -> None:
    schema, prompt = make_schema(seed), [5, 6, 7 + seed]
    expected = generate_greedily(
        llama_reference, prompt, 80, [EOS], logits_processor=[Masked(llama, schema, len(prompt))]
    )
    for decode in [Autoregressive(), *METHODS]:
        found = llama.generate(
            prompt, decode=decode, max_new_tokens=80, grammar=Grammar.json_schema(schema), temperature=0.0
        )
        assert found.token_ids == [token for token in expected if token != EOS], decode
        assert found.finish_reason == ("length" if len(expected) == 80 else "stop")


@pytest.mark.parametrize(
    ("grammar", "settings"),
    exhaustive_except(
        [(grammar, settings) for grammar in GRAMMARS for settings in SAMPLINGS],
        *((grammar, SAMPLINGS[number % 5]) for number, grammar in enumerate(GRAMMARS)),
    ),
)
def test_every_method_gives_the_text_of_plain_decoding(
    grammar: Grammar, settings: dict[str, Any], llama: Engine
) -> None:
    sampling = Sampling(**settings, seed=3)
    plain = llama.generate("def add", decode=Autoregressive(), sampling=sampling, grammar=grammar, max_new_tokens=70)
    for decode in METHODS:
        found = llama.generate("def add", decode=decode, sampling=sampling, grammar=grammar, max_new_tokens=70)
        assert (found.token_ids, found.finish_reason) == (plain.token_ids, plain.finish_reason), decode


def test_tokens_that_must_follow_save_steps(llama: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"a_long_name_of_a_property": {"enum": ["one", "two"]}, "another_long_name": {"const": 3}},
        "required": ["a_long_name_of_a_property", "another_long_name"],
        "additionalProperties": False,
    }
    found = llama.generate("x", decode=Auto(rows=8), grammar=Grammar.json_schema(schema), temperature=0.0)
    assert json.loads(found.text)["another_long_name"] == 3
    assert found.stats.accepted["grammar"] > 20 and found.stats.tokens_per_step > 4


def test_log_probabilities_are_the_model_s_own(llama: Engine) -> None:
    """Those of the unmasked distribution, whatever drafts there are."""
    grammar, sampling = Grammar("regex", "[a-c]{12}"), Sampling(temperature=0.7, seed=1, logprobs=3)
    plain, drafted = (
        llama.generate("def ", decode=decode, sampling=sampling, grammar=grammar)
        for decode in (Autoregressive(), Auto())
    )
    assert plain.logprobs and drafted.logprobs and len(plain.logprobs) == len(plain.token_ids)
    for one, other in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert one.token == other.token and one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert one.top[0][1] >= one.logprob - 1e-6
    assert any(entry.token not in [token for token, _ in entry.top] for entry in plain.logprobs)


def test_other_drafters_and_captured_forwards(
    checkpoint_folder: Callable[[str], Any], llama: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference drops and keeps drafts as the library does, and the simple drafter gives the same text."""
    from lp.platform.library import python_alone

    for seed in range(3):
        grammar = Grammar.json_schema(make_schema(seed))
        settings: dict[str, Any] = {"decode": Auto(rows=20), "grammar": grammar, "temperature": 0.0}
        native = llama.generate("def add", max_new_tokens=80, **settings)
        with python_alone():
            simple = Engine(llama.checkpoint).generate("def add", max_new_tokens=80, **settings)
        with monkeypatch.context() as patched:
            patched.setattr("lp.drafting.history.usual_drafters", ReferenceDrafters)
            python = Engine(llama.checkpoint).generate("def add", max_new_tokens=80, **settings)
        assert native.token_ids == python.token_ids == simple.token_ids
        fresh = Engine(llama.checkpoint).generate("def add", max_new_tokens=80, **settings)
        assert (fresh.stats.steps, fresh.stats.proposed) == (python.stats.steps, python.stats.proposed)
