"""decode=auto with a second model on real ranks: the tokens of plain decoding, also of requests that others began."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lp import Auto, Autoregressive, DraftModel, Engine, Sampling, Stopping
from lp.request import Completion
from lp.runner.single_device import SingleDevice
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.lp.test_lossless import make_prompt
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_draft_model_on_ranks import make_engine

pytestmark = pytest.mark.slow
METHODS = [Auto(), Auto(rows=10), Auto(max_rows=24, model_drafts=False), DraftModel(depth=3)]
STOPPING = Stopping(20, ignore_eos=True)
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11, logprobs=2)
PROMPTS = [make_prompt(60), [*make_prompt(9), *make_prompt(9)]]
CASES = [(prompt, decode, one) for prompt in PROMPTS for decode in METHODS for one in (GREEDY, SAMPLED)]
# Ranks may rest, and rows cost something.
TIMES = StepTimes((1, 32), (0.010, 0.016), 2, StepTimes((1, 32), (0.009, 0.020)))
Found = list[list[int]]


def decode_all(engine: Engine) -> Found:
    """Each request alone, then all in the same steps."""
    found = [
        engine.generate(prompt, decode=decode, sampling=sampling, stopping=STOPPING).token_ids
        for prompt, decode, sampling in CASES
    ]
    done = {f"{number}": Completion() for number in range(len(CASES))}
    for number, (prompt, decode, sampling) in enumerate(CASES):
        own = replace(sampling, seed=number)
        engine.add_request(engine.request_builder.build(prompt, decode, own, STOPPING, f"{number}"))
    while not engine.is_idle:
        for output in engine.step():
            done[output.request_id].extend(output)
    return [*found, *(completion.token_ids for completion in done.values())]


def on_ranks(mesh: Mesh, channel: Channel, folder: str, has_times: bool) -> Found:
    engine = make_engine(channel, "lp", None, folder)
    if has_times:
        engine = Engine(engine.checkpoint, engine.runner, fingerprints=True, step_times=TIMES)
    return decode_all(engine)


def go_on(mesh: Mesh, channel: Channel, folder: str, num_known: int, expected: Found) -> tuple[Found, int]:
    """Requests of which this rank has nothing but the tokens. Returns the second model's accepted drafts as well."""
    engine, done, num_right = make_engine(channel, "lp", None, folder), list[list[int]](), 0
    for number, (prompt, decode, sampling) in enumerate(CASES):
        request = engine.request_builder.build(prompt, decode, sampling, STOPPING, f"{number}")
        runner = LookaheadParallel(SingleDevice(engine.checkpoint.model, 16), channel)
        (replayed,) = engine.resume(runner, [(request, expected[number][:num_known])], None)
        completion = Completion()
        completion.extend(replayed)
        while completion.finish_reason is None:
            for output in engine.step():
                completion.extend(output)
                num_right += output.stats.accepted["draft_model"] if output.finish_reason else 0
        done.append(completion.token_ids)
    return done, num_right


@pytest.fixture(scope="module")
def expected(checkpoint_folder: Callable[[str], Path]) -> Found:
    """The tokens of plain decoding."""
    engine = make_engine(None, "single", None, str(checkpoint_folder("llama")))
    seeds = [one.seed for _, _, one in CASES], range(len(CASES))
    return [
        engine.generate(
            prompt, decode=Autoregressive(), sampling=replace(sampling, seed=seed), stopping=STOPPING
        ).token_ids
        for of_run in seeds
        for (prompt, _, sampling), seed in zip(CASES, of_run, strict=True)
    ]


@pytest.mark.parametrize("has_times", [False, True], ids=["no times", "times"])
def test_lookahead_parallelism(has_times: bool, checkpoint_folder: Callable[[str], Path], expected: Found) -> None:
    found = run_ranks(on_ranks, 2, str(checkpoint_folder("llama")), has_times, timeout_s=90)
    assert found == [expected] * 2


def test_requests_that_other_ranks_have_begun(checkpoint_folder: Callable[[str], Path], expected: Found) -> None:
    found = run_ranks(go_on, 2, str(checkpoint_folder("llama")), 7, expected, timeout_s=90)
    assert [tokens for tokens, _ in found] == [expected[: len(CASES)]] * 2
    assert found[0][1] > 0
