"""One rank verifies while others draft ahead of its steps: the tokens are those of a single device, in fewer steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lp import Auto, Autoregressive, DraftModel, Engine, Sampling, SecondModel, Stopping
from lp.grammar.settings import Grammar
from lp.model.checkpoint import ModelSettings, load
from lp.model.quantization.quantize import Weights
from lp.model.second_model import SecondModelExtension
from lp.request import Completion
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from tests.lp.test_lossless import make_prompt
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

METHODS = [DraftModel(), Auto(), DraftModel(depth=3, rows=10)]
PROMPTS = [[7], make_prompt(60)]
STOPPING = Stopping(30, ignore_eos=True)
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11, logprobs=2)
# Tokens and steps of each request.
Found = list[tuple[list[int], int]]


def make_engine(channel: Channel | None, folder: str, second: SecondModel) -> Engine:
    draft = SecondModelExtension("draft", second, holds_all=True)
    checkpoint = load(ModelSettings(folder, device="cpu"), extensions=[draft])
    draft.relative_costs = (0.2, 0.22, 0.25, 0.3)
    alone = SingleDevice(checkpoint.model, 16)
    runner = share_steps(alone, channel, has_draft=True) if channel else alone
    return Engine(checkpoint, runner, fingerprints=True)


def decode_all(engine: Engine) -> Found:
    """Each request alone, then all in the same steps."""
    cases = [(prompt, decode, one) for prompt in PROMPTS for decode in METHODS for one in (GREEDY, SAMPLED)]
    found = [
        engine.generate(prompt, decode=decode, sampling=sampling, stopping=STOPPING)
        for prompt, decode, sampling in cases
    ]
    done = {f"{number}": Completion() for number in range(len(cases))}
    for number, (prompt, decode, sampling) in enumerate(cases):
        own = replace(sampling, seed=number)
        engine.add_request(engine.request_builder.build(prompt, decode, own, STOPPING, f"{number}"))
    while not engine.is_idle:
        for output in engine.step():
            done[output.request_id].extend(output)
    return [(one.token_ids, one.stats.steps) for one in (*found, *done.values())]


def decode_rejecting(engine: Engine) -> Found:
    """Its texts depend on the drafts, and these on the keys and values that a rank has: only ranks are alike."""
    decode = DraftModel(depth=3, verify="rejection")
    found = [engine.generate(prompt, decode=decode, sampling=SAMPLED, stopping=STOPPING) for prompt in PROMPTS]
    return [(one.token_ids, one.stats.steps) for one in found]


def decode_under_a_grammar(engine: Engine) -> Found:
    grammar = Grammar("regex", "[a-f0-9 ]{30,60}")
    found = [
        engine.generate(prompt, decode=decode, sampling=sampling, stopping=STOPPING, grammar=grammar)
        for prompt in PROMPTS
        for decode in METHODS
        for sampling in (GREEDY, SAMPLED)
    ]
    return [(one.token_ids, one.stats.steps) for one in found]


def on_ranks(mesh: Mesh, channel: Channel, folder: str, second: SecondModel) -> list[Found]:
    engine = make_engine(channel, folder, second)
    return [decode_all(engine), decode_under_a_grammar(engine), decode_rejecting(engine)]


def all_on_ranks(mesh: Mesh, channel: Channel, folder: str, second: SecondModel) -> Found:
    return decode_all(make_engine(channel, folder, second))


def text_on_ranks(mesh: Mesh, channel: Channel, folder: str, second: SecondModel) -> Found:
    engine = make_engine(channel, folder, second)
    done = [engine.generate(PROMPTS[1], decode=decode, sampling=GREEDY, stopping=STOPPING) for decode in METHODS[:2]]
    return [(one.token_ids, one.stats.steps) for one in done]


def test_a_text_is_that_of_plain_decoding(checkpoint_folder: Callable[[str], Path]) -> None:
    folder, second = str(checkpoint_folder("llama")), SecondModel(weights=Weights.int8)
    found = run_ranks(text_on_ranks, 2, folder, second, timeout_s=60)
    plain = make_engine(None, folder, second).generate(
        PROMPTS[1], decode=Autoregressive(), sampling=GREEDY, stopping=STOPPING
    )
    assert found == found[:1] * 2 and tokens_of(found[0]) == [plain.token_ids] * 2
    assert all(steps < 0.7 * len(tokens) for tokens, steps in found[0]), "drafts are accepted"


@pytest.mark.parametrize("num_ranks", exhaustive_except([2, 3, 4], 3))
def test_tokens_are_those_of_one_device(num_ranks: int, checkpoint_folder: Callable[[str], Path]) -> None:
    folder, second = str(checkpoint_folder("llama")), SecondModel(weights=Weights.int8)
    found = run_ranks(on_ranks, num_ranks, folder, second, timeout_s=60)
    engine = make_engine(None, folder, second)
    expected = [decode_all(engine), decode_under_a_grammar(engine)]
    assert [tokens_of(one) for one in found[0][:2]] == [tokens_of(one) for one in expected]
    assert found == found[:1] * num_ranks, "all ranks take the same steps"
    tokens, steps = zip(*found[0][0][: 2 * len(METHODS)], strict=True)
    assert sum(steps) < 0.6 * sum(map(len, tokens)), "drafts are accepted"


@pytest.mark.slow
def test_another_model_reads_the_text_by_itself(checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    second = SecondModel(folder)
    found = run_ranks(all_on_ranks, 2, folder, second, timeout_s=60)
    assert tokens_of(found[1]) == tokens_of(decode_all(make_engine(None, folder, second)))
    tokens, steps = zip(*found[0][: 2 * len(METHODS)], strict=True)
    assert sum(steps) < 0.6 * sum(map(len, tokens)), "drafts are accepted"


def tokens_of(found: Found) -> list[list[int]]:
    return [tokens for tokens, _ in found]
