"""decode=best_of returns the best of as many texts as plain sampling yields for the seeds of `n`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, BestOf, Completion, Engine, Grammar, Sampling, SecondModel, Stopping
from lp.methods.inner import INNER
from lp.request import Output, mean_logprob
from tests.lp.test_lossless import make_prompt

PROMPT = make_prompt(70, seed=6)
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 21}
NUM_TOKENS = 16


def best(engine: Engine, decode: BestOf, **settings: Any) -> Completion:
    return engine.generate(PROMPT, decode=decode, max_new_tokens=NUM_TOKENS, **{**SAMPLED, **settings})


def plainly(engine: Engine, number: int, **settings: Any) -> list[Completion]:
    """So many plain samplings, best first."""
    found = [
        engine.generate(
            PROMPT, decode=Autoregressive(), max_new_tokens=NUM_TOKENS,
            **{**SAMPLED, "seed": SAMPLED["seed"] + i, "logprobs": 0, **settings},
        )
        for i in range(number)
    ]  # fmt: skip
    return sorted(found, key=lambda one: mean_logprob(one.logprobs), reverse=True)


@pytest.mark.parametrize("inner", INNER)
def test_the_texts_are_those_of_plain_samplings(inner: str, llama: Engine) -> None:
    done = best(llama, BestOf(inner, num_samples=5, num_return_sequences=5), frequency_penalty=0.5)
    expected = plainly(llama, 5, frequency_penalty=0.5)
    assert done.beams is not None
    assert [text.token_ids for text in done.beams.texts] == [one.token_ids for one in expected]
    assert [text.text for text in done.beams.texts] == [one.text for one in expected]
    scores = [text.score for text in done.beams.texts]
    assert scores == pytest.approx([mean_logprob(one.logprobs) for one in expected], abs=1e-4)
    assert len({*map(str, scores)}) == 5 and scores == sorted(scores, reverse=True)
    assert (done.text, done.token_ids) == (expected[0].text, expected[0].token_ids)
    assert done.finish_reason == expected[0].finish_reason and done.logprobs is None
    assert done.stats.tokens == sum(len(one.token_ids) for one in expected) and done.beams.num_calls == done.stats.steps


def test_stop_strings_grammars_and_log_probabilities(llama: Engine) -> None:
    grammar, stopping = Grammar("regex", "[a-f]{3,9}"), Stopping(NUM_TOKENS, ["e"])
    settings = {"grammar": grammar, "stopping": stopping, "logprobs": 2}
    done, expected = best(llama, BestOf(num_samples=3), **settings), plainly(llama, 3, **settings)
    assert (done.text, done.token_ids) == (expected[0].text, expected[0].token_ids)
    assert done.logprobs and len(done.logprobs) == len(done.token_ids) and len(done.logprobs[0].top) == 2


def test_samples_share_the_prompt(llama: Engine) -> None:
    """The prompt is computed once, whatever scheduler.prefix_reuse says."""
    counts = []
    for decode in (BestOf("autoregressive", 4), BestOf("autoregressive", 1)):
        request = llama.request_builder.build(PROMPT, decode, Sampling(**SAMPLED), Stopping(4, ignore_eos=True))
        llama.add_request(request)
        rows = 0
        while not llama.is_idle:
            rows += sum(output.engine.rows for output in llama.step() if output.engine)
        counts.append(rows)
    assert counts[0] < counts[1] + 3 * 8 < counts[1] + len(PROMPT)


def test_a_second_model_can_rank(
    checkpoint_folder: Callable[[str], Path], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    folder, judge = str(checkpoint_folder("llama")), reference_of("qwen2")
    second = SecondModel(str(checkpoint_folder("qwen2")))
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off", second=second)
    found = {}
    for inner in ("auto", "autoregressive"):
        done = best(engine, BestOf(inner, 4, 4, ranked_by="second"))
        assert done.beams is not None
        found[inner] = [text.token_ids for text in done.beams.texts]
        for text in done.beams.texts:
            with torch.inference_mode():
                logs = judge(torch.tensor([PROMPT + text.token_ids])).logits[0, len(PROMPT) - 1 : -1].log_softmax(1)
            mean = logs.gather(1, torch.tensor(text.token_ids)[:, None]).mean()
            assert text.score == pytest.approx(float(mean), abs=1e-4)
    assert found["auto"] == found["autoregressive"]
    by_model = best(engine, BestOf("auto", 4, 4)).beams
    assert by_model and sorted(found["auto"]) == sorted(text.token_ids for text in by_model.texts)
    assert found["auto"] != [text.token_ids for text in by_model.texts]


def test_nothing_is_told_before_the_end(llama: Engine) -> None:
    *before, last = llama.stream(PROMPT, decode=BestOf(num_samples=3), max_new_tokens=NUM_TOKENS, **SAMPLED)
    assert len(before) > NUM_TOKENS / 2
    assert not any(output.tokens or output.text or output.beams for output in before)
    assert len({output.request_id for output in (*before, last)}) == 1
    assert last.finish_reason and last.beams
    assert Output.from_dict(last.to_dict()).beams == last.beams


def test_cancelling_ends_all_samples(llama: Engine) -> None:
    request = llama.request_builder.build(PROMPT, BestOf(num_samples=3), Sampling(**SAMPLED), Stopping(NUM_TOKENS))
    llama.add_request(request)
    llama.step()
    assert llama.num_running == 3 and llama.generated() == {request.id: []}
    output = llama.abort(request.id)
    assert output and output.finish_reason == "cancelled" and output.request_id == request.id
    assert llama.is_idle and not llama.abort(request.id)


def test_it_goes_on_after_its_ranks_have_met_again(llama: Engine) -> None:
    """From the prompt, with the same samples."""
    decode = BestOf(num_samples=3)
    expected = best(llama, decode)
    request = llama.request_builder.build(PROMPT, decode, Sampling(**SAMPLED), Stopping(NUM_TOKENS))
    llama.add_request(request)
    for _ in range(5):
        llama.step()
    (told,) = llama.resume(llama.runner, [(request, [])], None)
    assert told.request_id == request.id and not told.tokens
    last = told
    while not llama.is_idle:
        last = llama.step()[-1]
    assert last.tokens == expected.token_ids and last.beams and expected.beams
    assert [text.text for text in last.beams.texts] == [text.text for text in expected.beams.texts]
