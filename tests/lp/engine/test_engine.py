"""The engine's loop: several requests side by side, and a model that answers NaN."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.model.causal import CausalModel
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import Answers
from tests.lp.test_lossless import make_prompt

GREEDY = Sampling(temperature=0.0, seed=0)


def test_requests_share_steps_and_do_not_disturb_each_other(llama: Engine) -> None:
    prompts = [[5, 9, 5, 9], [40, 41, 42], [7, 3]]
    alone = [llama.generate(prompt, max_new_tokens=20, sampling=GREEDY).token_ids for prompt in prompts]
    tokens: dict[str, list[int]] = {}
    order: list[str] = []
    for number, prompt in enumerate(prompts):
        stopping = Stopping(max_new_tokens=20)
        llama.add_request(llama.request_builder.build(prompt, Lookahead(), GREEDY, stopping, request_id=str(number)))
    while not llama.is_idle:
        for output in llama.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
            order.append(output.request_id)
    assert order[:6] == ["0", "1", "2"] * 2
    assert [tokens[str(number)] for number in range(3)] == alone


class TwoAtATime(SingleDevice):
    """A runner that takes two batches at a time and remembers the most steps that were under way at once."""

    depth = 2

    def __init__(self, engine: Engine):
        super().__init__(engine.checkpoint.model)
        self.under_way: list[str] = []
        self.sizes: deque[int] = deque()
        self.most = 0

    def start(self, steps: list[StepInput]) -> None:
        self.under_way += [step.sequence.id for step in steps]
        self.most = max(self.most, len(self.under_way))
        super().start(steps)

        self.sizes.append(len(steps))

    def finish(self) -> list[Answers]:
        del self.under_way[: self.sizes.popleft()]
        return super().finish()

    def close(self, sequence: Sequence) -> None:
        assert sequence.id not in self.under_way, "a sequence is closed while a step of it is under way"
        super().close(sequence)


def test_steps_of_several_requests_are_under_way_at_once(llama: Engine) -> None:
    prompts = [[5, 9, 5, 9], [40, 41, 42], [7, 3], [8, 8]]
    alone = [llama.generate(prompt, max_new_tokens=12, sampling=GREEDY).token_ids for prompt in prompts]
    runner = TwoAtATime(llama)
    engine = Engine(llama.checkpoint, runner)
    for number, prompt in enumerate(prompts):
        stopping = Stopping(max_new_tokens=12)
        engine.add_request(engine.request_builder.build(prompt, Lookahead(), GREEDY, stopping, request_id=str(number)))
    first = {output.request_id: output.tokens for output in engine.step()}
    assert set(first) == {"2", "3"} and runner.under_way == ["0", "1"], "short prompts are fed first"
    assert engine.abort("1") and "1" in runner.states, "its step is in flight"
    assert engine.abort("3") and "3" not in runner.states and engine.num_running == 2
    tokens = {"0": [], "2": first["2"]}
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id].extend(output.tokens)
    assert tokens == {"0": alone[0], "2": alone[2]}
    assert runner.most == 4 and not runner.states


def test_streams_run_side_by_side(llama: Engine) -> None:
    first, second = (llama.stream(prompt, max_new_tokens=12, sampling=GREEDY) for prompt in ([5, 9], [40, 41]))
    mixed: list[list[int]] = [[], []]
    for one, two in zip(first, second, strict=False):
        mixed[0] += one.tokens
        mixed[1] += two.tokens
    alone = [llama.generate(prompt, max_new_tokens=12, sampling=GREEDY).token_ids for prompt in ([5, 9], [40, 41])]
    assert all(part == whole[: len(part)] and part for part, whole in zip(mixed, alone, strict=True))
    first.close()
    second.close()
    assert llama.is_idle


def test_closing_a_stream_ends_its_request(llama: Engine) -> None:
    stream = llama.stream([5, 9, 5], max_new_tokens=50, sampling=GREEDY)
    next(stream)
    assert llama.num_running == 1
    stream.close()
    assert llama.is_idle


def test_nan_ends_only_the_request_in_which_it_occurs(checkpoint_folder: Callable[[str], Path]) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu")
    head = engine.checkpoint.model.model.get_output_embeddings().weight
    stream = engine.stream([5, 9, 5], max_new_tokens=50, decode=Autoregressive(), sampling=GREEDY)
    next(stream)
    healthy = head[3].clone()
    with torch.no_grad():
        head[3] = float("nan")
    with pytest.raises(FloatingPointError, match=r"after 1 tokens the model answered .*NaN"):
        next(stream)
    with torch.no_grad():
        head[3] = healthy
    assert engine.is_idle
    assert len(engine.generate([5, 9, 5], max_new_tokens=5, sampling=GREEDY).token_ids) == 5


def test_rows_after_which_nothing_may_come_give_no_drafts(llama: Engine) -> None:
    """Every pair of the few tokens that are allowed has been used soon, and no pair may come twice."""
    rng, prompt = np.random.default_rng(0), [5, 9, 7, 8, 7, 8, 7, 8]
    for size in (3, 4, 5) * 4:
        allowed = [7, 8, *rng.integers(2, 60, size - 2).tolist()]
        sampling = Sampling(temperature=0.0, seed=0, no_repeat_ngram=2, allowed_token_ids=allowed)
        plain = llama.generate(prompt, decode=Autoregressive(), max_new_tokens=30, sampling=sampling)
        drafted = llama.generate(prompt, decode=Auto(), max_new_tokens=30, sampling=sampling)
        assert drafted.token_ids == plain.token_ids and drafted.finish_reason == plain.finish_reason


def test_a_step_that_failed_is_computed_again(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = make_prompt(60, 1)
    expected = llama.generate(prompt, max_new_tokens=12, sampling=GREEDY).token_ids
    run, calls = CausalModel.forward_many, 0

    def run_once_in_vain(self: CausalModel, *arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError
        return run(self, *arguments)

    llama.scheduler.reset_prefixes()
    monkeypatch.setattr(CausalModel, "forward_many", run_once_in_vain)
    llama.add_request(llama.request_builder.build(prompt, None, GREEDY, Stopping(max_new_tokens=12)))
    with pytest.raises(MemoryError):
        llama.step()
    tokens: list[int] = []
    while not llama.is_idle:
        tokens += [token for output in llama.step() for token in output.tokens]
    assert tokens == expected


def test_nan_off_the_accepted_path_changes_nothing(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the window may overflow in 16 bits although the rows of the text do not."""
    expected = llama.generate([5, 9, 5, 9], max_new_tokens=24, decode=Lookahead(), sampling=GREEDY)
    forward = llama.checkpoint.model.forward_many

    def spoiled(given):
        logits = forward(given).clone()
        if len(logits) > 1:
            logits[-1] = float("nan")
        return logits

    monkeypatch.setattr(llama.checkpoint.model, "forward_many", spoiled)
    window_only = Lookahead(prompt_drafts=False, generated_drafts=False, window_drafts=False)
    with_logprobs = Sampling(temperature=0.0, seed=0, logprobs=2)
    for decode in (window_only, Lookahead()):
        for sampling in (GREEDY, with_logprobs):
            got = llama.generate([5, 9, 5, 9], max_new_tokens=24, decode=decode, sampling=sampling)
            assert got.token_ids == expected.token_ids
