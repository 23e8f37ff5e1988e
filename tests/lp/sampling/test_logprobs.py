"""Log-probabilities are those of the model's own distribution, before any processing, at every emitted token."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.request import DecodingMethod

PROMPT = [5, 90, 31, 7, 200, 14] * 4
METHODS: list[DecodingMethod] = [Autoregressive(), Jacobi(4), PromptLookup(3, 3), Lookahead(5, 3, 5)]


@pytest.mark.parametrize("how", METHODS, ids=lambda how: how.method)
def test_log_probabilities_are_the_models_own(
    how: DecodingMethod, llama: Engine, llama_reference: PreTrainedModel
) -> None:
    sampling = Sampling(temperature=0.6, top_k=20, logit_bias={9: 3.0}, seed=2, logprobs=4)
    completion = llama.generate(PROMPT, decode=how, sampling=sampling, stopping=Stopping(40, ignore_eos=True))
    text = completion.token_ids
    with torch.inference_mode():
        logits = llama_reference(torch.tensor([PROMPT + text])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(dim=-1)
    best = expected.topk(4)
    assert completion.logprobs is not None and len(completion.logprobs) == len(text)
    for place, (token, found) in enumerate(zip(text, completion.logprobs, strict=True)):
        assert found.token == token
        assert found.logprob == pytest.approx(expected[place, token].item(), abs=1e-4)
        assert [alternative for alternative, _ in found.top] == best.indices[place].tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(best.values[place].tolist(), abs=1e-4)


def test_without_alternatives_only_the_token_itself_is_reported(llama: Engine) -> None:
    completion = llama.generate(PROMPT, max_new_tokens=3, sampling=Sampling(logprobs=0))
    assert completion.logprobs is not None
    assert [(found.token, found.top) for found in completion.logprobs] == [
        (token, []) for token in completion.token_ids
    ]


def test_nothing_is_reported_unless_asked_for(llama: Engine) -> None:
    assert llama.generate(PROMPT, max_new_tokens=3).logprobs is None


def test_log_probabilities_are_cut_with_the_tokens(llama: Engine) -> None:
    for most in range(1, 12):
        completion = llama.generate(
            PROMPT, max_new_tokens=most, decode=PromptLookup(3, 5), sampling=Sampling(logprobs=1)
        )
        assert completion.logprobs is not None
        assert [found.token for found in completion.logprobs] == completion.token_ids
