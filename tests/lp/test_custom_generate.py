"""model.generate(..., custom_generate=lp.generate) gives what `generate` gives, and leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import lp
from lp.custom_generate import CannotHonour
from lp.methods.beam import Beam
from lp.methods.jacobi import Jacobi
from tests.lp.test_lossless import make_prompt
from tests.models import EOS, load_reference
from tests.slow import slow_except

METHODS: list[dict[str, Any]] = [{}, {"W": 5, "N": 4, "G": 5}, {"decode": Jacobi(4)}]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_generate"


@pytest.fixture
def model_of(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    return lambda architecture: load_reference(checkpoint_folder(architecture))


def prompt(length: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.tensor([make_prompt(length, seed)])


@pytest.mark.parametrize("architecture", slow_except(["llama", "qwen3", "gpt2"], "llama"))
def test_greedy_tokens_are_those_of_generate(architecture: str, model_of: Callable[[str], Any]) -> None:
    model = model_of(architecture)
    for given in ({"max_new_tokens": 40}, {"max_new_tokens": 40, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}):
        expected = model.generate(prompt(), do_sample=False, **given)
        for how in METHODS:
            found = model.generate(prompt(), do_sample=False, custom_generate=lp.generate, **given, **how)
            assert found.tolist() == expected.tolist(), how
        assert model.generate(prompt(), do_sample=False, **given).tolist() == expected.tolist()
    assert model.config._attn_implementation == "eager"


def test_an_end_of_sequence_ends_the_text(model_of: Callable[[str], Any]) -> None:
    model = model_of("llama")
    text = model.generate(prompt(), do_sample=False, max_new_tokens=30)[0, 30:].tolist()
    for end in (text[4], text[11]):
        expected = model.generate(prompt(), do_sample=False, max_new_tokens=30, eos_token_id=end)
        found = model.generate(
            prompt(), do_sample=False, max_new_tokens=30, eos_token_id=end, custom_generate=lp.generate
        )
        assert found.tolist() == expected.tolist() and found[0, -1] == end


def test_the_calls_own_end_of_sequence_waits_for_the_least_number_of_tokens(model_of: Callable[[str], Any]) -> None:
    model = model_of("llama")
    end = model.generate(prompt(), do_sample=False, max_new_tokens=30)[0, 34].item()
    given = {"do_sample": False, "eos_token_id": end, "min_new_tokens": 10, "max_new_tokens": 16}
    expected = model.generate(prompt(), **given)
    found = model.generate(prompt(), custom_generate=lp.generate, **given)
    assert found.tolist() == expected.tolist() and len(found[0]) >= 40


class EndsAt(StoppingCriteria):
    """Stops after a length, and notes the lengths that it has seen."""

    def __init__(self, length: int):
        self.length, self.seen = length, list[int]()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.seen.append(input_ids.shape[1])
        return torch.tensor([input_ids.shape[1] >= self.length])


class Notes(BaseStreamer):
    def __init__(self) -> None:
        self.tokens, self.has_ended = list[int](), False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.has_ended = True


def test_criteria_and_streamers_see_each_token(model_of: Callable[[str], Any]) -> None:
    model, ends, notes = model_of("llama"), EndsAt(47), Notes()
    found = model.generate(
        prompt(), do_sample=False, max_new_tokens=60, custom_generate=lp.generate, streamer=notes,
        stopping_criteria=StoppingCriteriaList([ends]), return_dict_in_generate=True,
    )  # fmt: skip
    assert found.sequences.shape == (1, 47) and ends.seen == list(range(31, 48))
    assert notes.tokens == found.sequences[0].tolist() and notes.has_ended


def test_sampled_text_is_repeated_by_a_seed(model_of: Callable[[str], Any]) -> None:
    model, texts = model_of("llama"), []
    for seed, how in ((1, {}), (1, {"W": 5, "N": 4, "G": 5}), (2, {})):
        torch.manual_seed(seed)
        found = model.generate(
            prompt(), do_sample=True, temperature=0.8, top_k=40, top_p=0.9, max_new_tokens=25,
            custom_generate=lp.generate, **how,
        )  # fmt: skip
        texts.append(found.tolist())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences=2"),
        ({"bad_words_ids": [[3]]}, "NoBadWordsLogitsProcessor"),
        ({"logits_processor": [lambda ids, scores: scores]}, "function"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"attention_mask": torch.tensor([[0] + 29 * [1]])}, "padding in attention_mask"),
        ({"inputs": torch.cat([prompt(), prompt()])}, "a batch of 2"),
        ({"decode": Beam()}, "decode=beam"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(
    given: dict[str, Any], what: str, model_of: Callable[[str], Any]
) -> None:
    model = model_of("llama")
    with pytest.raises(CannotHonour, match=what):
        model.generate(**{"inputs": prompt(), "max_new_tokens": 8, **given}, custom_generate=lp.generate)
    with pytest.raises(ValueError, match="not both"):
        model.generate(prompt(), custom_generate=lp.generate, W=3, decode=Jacobi(3))


def test_the_folder_in_the_examples(model_of: Callable[[str], Any]) -> None:
    model = model_of("llama")
    given: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": EOS}
    found = model.generate(prompt(), custom_generate=str(EXAMPLE), trust_remote_code=True, W=5, N=3, G=5, **given)
    assert found.tolist() == model.generate(prompt(), **given).tolist()
