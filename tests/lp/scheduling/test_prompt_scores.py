"""Log-probabilities of a prompt's tokens: those of transformers' forward, whatever else the engine does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.kv_cache.cache import PAGE
from lp.request import Completion, Output, Request, TokenLogprob
from lp.scheduling import prompt_scores
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from tests.models import load_reference

GREEDY = Sampling(temperature=0.0, seed=0)
PROMPT = [(5 * i) % 97 + 2 for i in range(80)]
DECODES = [Auto(), Autoregressive(), Lookahead(5, 4, 5), PromptLookup(), Jacobi(6)]


@pytest.fixture(scope="module")
def expected(checkpoint_folder: Callable[[str], Path]) -> torch.Tensor:
    """[80, V] the reference's log-probabilities of what follows each token of the prompt."""
    with torch.inference_mode():
        logits = load_reference(checkpoint_folder("llama"))(torch.tensor([PROMPT])).logits[0]
    return logits.float().log_softmax(dim=1)


def check(found: list[TokenLogprob] | None, expected: torch.Tensor, prompt: list[int] = PROMPT, num_top: int = 0):
    assert found is not None and [entry.token for entry in found] == prompt[1:]
    for row, entry in enumerate(found):
        assert entry.logprob == pytest.approx(float(expected[row, entry.token]), abs=1e-4)
        best = expected[row].topk(num_top) if num_top else None
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist() if best else [], abs=1e-4)
        assert not entry.top or entry.top[0][0] == int(expected[row].argmax())


@pytest.mark.parametrize("decode", DECODES, ids=lambda decode: type(decode).__name__)
@pytest.mark.parametrize("num_top", [0, 3])
def test_equal_to_the_reference_with_every_method(llama: Engine, expected: torch.Tensor, decode, num_top: int):
    plain = llama.generate(PROMPT, max_new_tokens=12, decode=Autoregressive(), sampling=GREEDY)
    found = llama.generate(PROMPT, max_new_tokens=12, decode=decode, sampling=GREEDY, prompt_logprobs=num_top)
    check(found.prompt_logprobs, expected, num_top=num_top)
    assert found.token_ids == plain.token_ids and plain.prompt_logprobs is None and found.logprobs is None


@pytest.mark.parametrize("most_logits", [1, 5 * 200, 1 << 23])
def test_chunks_bound_the_logits(llama: Engine, expected: torch.Tensor, most_logits: int, monkeypatch):
    monkeypatch.setattr(prompt_scores, "MOST_LOGITS", most_logits)
    sizes = []
    forward_many = llama.checkpoint.model.forward_many
    monkeypatch.setattr(
        llama.checkpoint.model, "forward_many", lambda given: (sizes.append(given), forward_many(given))[1]
    )
    check(
        llama.generate(PROMPT, max_new_tokens=3, sampling=GREEDY, prompt_logprobs=1).prompt_logprobs,
        expected,
        num_top=1,
    )
    most = max(1, most_logits // llama.checkpoint.vocab_size)
    rows = [sum(one.num_logits for one in given) for given in sizes]
    assert rows[0] == min(most, len(PROMPT) - 1) and sum(rows[: -(-(len(PROMPT) - 1) // most)]) == len(PROMPT) - 1


def test_without_any_new_token(llama: Engine, expected: torch.Tensor):
    found = llama.generate(PROMPT, max_new_tokens=0, sampling=GREEDY, prompt_logprobs=1)
    check(found.prompt_logprobs, expected, num_top=1)
    assert (found.text, found.token_ids, found.finish_reason, found.stats.tokens) == ("", [], "length", 0)
    assert llama.generate([5], max_new_tokens=0, prompt_logprobs=1).prompt_logprobs == []
    assert llama.is_idle and not llama.runner.cache_bytes


def test_no_new_token_is_refused_where_nothing_would_be_computed(llama: Engine):
    with pytest.raises(ValueError, match="max_new_tokens=0 must be at least 1"):
        llama.generate(PROMPT, max_new_tokens=0)
    with pytest.raises(ValueError, match="max_new_tokens=-1 must be at least 0"):
        llama.generate(PROMPT, max_new_tokens=-1, prompt_logprobs=0)
    with pytest.raises(ValueError, match=r"prompt_logprobs=21 is out of range"):
        llama.generate(PROMPT, prompt_logprobs=21)


def test_sampling_and_penalties_change_nothing(llama: Engine, expected: torch.Tensor):
    settings = {"temperature": 0.9, "seed": 5, "top_p": 0.8, "repetition_penalty": 1.3, "logit_bias": {9: 5.0}}
    plain = llama.generate(PROMPT, max_new_tokens=12, logprobs=2, **settings)
    found = llama.generate(PROMPT, max_new_tokens=12, logprobs=2, prompt_logprobs=0, **settings)
    check(found.prompt_logprobs, expected)
    assert found.token_ids == plain.token_ids and len(found.logprobs or []) == len(found.token_ids)


def test_a_prompt_that_is_known_is_scored_all_the_same(llama: Engine, expected: torch.Tensor):
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(prefix_reuse=PrefixReuse.all))
    plain = engine.generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
    for _ in range(2):
        found = engine.generate(PROMPT, max_new_tokens=8, sampling=GREEDY, prompt_logprobs=2)
        check(found.prompt_logprobs, expected, num_top=2)
        assert found.token_ids == plain.token_ids and found.stats.cached_tokens == 0
    assert engine.generate(PROMPT, max_new_tokens=8, sampling=GREEDY).stats.cached_tokens == len(PROMPT) - 1


def run(engine: Engine, requests: list[Request]) -> dict[str, Completion]:
    found = {request.id: Completion() for request in requests}
    for request in requests:
        assert engine.add_request(request) is None
    while not engine.is_idle:
        for output in engine.step():
            if output.request_id in found:
                found[output.request_id].extend(output)
    return found


def test_streams_go_on_beside_a_prompt_that_is_scored(llama: Engine, expected: torch.Tensor):
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(max_step_rows=8))
    stream = engine.request_builder.build([3, 4, 5], Autoregressive(), GREEDY, Stopping(40, ignore_eos=True), "stream")
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=1)
    scored = engine.request_builder.build(PROMPT, Autoregressive(), sampling, Stopping(4), "scored")
    found = run(engine, [stream, scored])
    check(found["scored"].prompt_logprobs, expected, num_top=1)
    alone = llama.generate([3, 4, 5], sampling=GREEDY, stopping=Stopping(40, ignore_eos=True))
    assert found["stream"].token_ids == alone.token_ids


def test_a_prompt_that_loses_its_room_is_scored_anew(llama: Engine, expected: torch.Tensor):
    """The first request grows until the second one, whose prompt is being scored, has no room."""
    engine = Engine(llama.checkpoint, budget=KVBudget(2), scheduler=SchedulerSettings(max_step_rows=2))
    dropped: list[str] = []
    drop = engine.runner.drop
    engine.runner.drop = lambda sequence: (dropped.append(sequence.id), drop(sequence))[1]  # type: ignore[method-assign]
    stopping, almost_a_page = Stopping(20, ignore_eos=True), (PROMPT * 4)[: PAGE - 8]
    engine.add_request(engine.request_builder.build(almost_a_page, Autoregressive(), GREEDY, stopping, "first"))
    while not engine.generated()["first"]:
        engine.step()
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=1)
    found = run(engine, [engine.request_builder.build(PROMPT, Autoregressive(), sampling, Stopping(4), "scored")])
    assert dropped == ["scored"]
    check(found["scored"].prompt_logprobs, expected, num_top=1)
    assert found["scored"].token_ids == llama.generate(PROMPT, max_new_tokens=4, sampling=GREEDY).token_ids


def test_a_request_that_is_resumed_before_its_first_token_is_scored_anew(llama: Engine, expected: torch.Tensor):
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(max_step_rows=16))
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=1)
    request = engine.request_builder.build(PROMPT, Autoregressive(), sampling, Stopping(4), "scored")
    other = engine.request_builder.build([3, 4], Autoregressive(), GREEDY, Stopping(9), "other")
    engine.add_request(other)
    engine.add_request(request)
    while not engine.generated()["other"]:
        engine.step()
    assert engine.generated()["scored"] == []
    engine.resume(engine.runner, [(request, [])], None)
    found = Completion()
    while not engine.is_idle:
        for output in engine.step():
            found.extend(output)
    check(found.prompt_logprobs, expected, num_top=1)
    tokens = found.token_ids
    engine.resume(engine.runner, [(request, tokens[:2])], None)
    later = [output for _ in range(3) if not engine.is_idle for output in engine.step()]
    assert [token for output in later for token in output.tokens] == tokens[2:]
    assert all(output.prompt_logprobs is None for output in later)


def test_an_answer_that_is_not_a_number_ends_the_request(llama: Engine, monkeypatch):
    model = llama.checkpoint.model
    forward_many = model.forward_many
    monkeypatch.setattr(model, "forward_many", lambda given: torch.full_like(forward_many(given), float("nan")))
    with pytest.raises(FloatingPointError, match="not a number"):
        llama.generate(PROMPT, sampling=GREEDY, prompt_logprobs=0)
    assert llama.is_idle and not llama.runner.cache_bytes


def test_progress_travels_as_json(llama: Engine):
    scored = [TokenLogprob(5, -1.5, [(5, -1.5), (6, -2.0)])]
    output = Output("a", [1], "x", None, None, llama.generate([5], max_new_tokens=1).stats, None, scored)
    assert Output.from_dict(output.to_dict()).prompt_logprobs == scored
