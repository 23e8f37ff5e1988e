"""What the ranks of a sweep measure: the runtime and transformers' own `generate`, on the same tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.data.workloads import WorkloadSettings
from launch.sweep import baseline, measure
from launch.sweep.measure import Outcome, fit
from launch.sweep.settings import BASELINES, BenchSettings
from lp import Autoregressive, Lookahead
from lp.model.checkpoint import ModelSettings
from lp.sampling.settings import Sampling
from tests.models import EOS, save_checkpoint

NEW_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its context is long enough for the shipped workload, whose texts the tiny tokenizer cuts into bytes."""
    return str(save_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=4096))


def settings(model: str, decode: Any = None, **more: Any) -> BenchSettings:
    more.setdefault("sampling", Sampling(temperature=0.0))
    workload = WorkloadSettings(limit=2, max_new_tokens=NEW_TOKENS)
    return BenchSettings(
        model=ModelSettings(model, device="cpu"), decode=decode or Autoregressive(), workload=workload, **more
    )


def digests(outcome: Outcome) -> list[str]:
    return [text.digest for text in outcome.texts]


@pytest.mark.parametrize("engine", BASELINES)
def test_each_baseline_gives_the_texts_of_the_runtime_and_counts_its_steps(engine: str, model: str) -> None:
    ours = measure.run(settings(model, Lookahead(3, 3, 3)))
    theirs = baseline.run(settings(model, assistant=model), engine)
    assert digests(theirs) == digests(ours)
    for outcome in (ours, theirs):
        assert [text.tokens for text in outcome.texts] == [NEW_TOKENS] * 2
        assert sum(length * count for length, count in outcome.accepted_lengths.items()) == 2 * NEW_TOKENS
        assert outcome.accepted_lengths.total() == sum(text.steps for text in outcome.texts)
        assert all(0 < text.ttft_s < text.decode_s < outcome.seconds for text in outcome.texts)
        assert outcome.figures.cache_bytes > 0 and outcome.figures.weight_bytes == ours.figures.weight_bytes
    steps = sum(text.steps for text in theirs.texts)
    if engine in ("generate", "generate_static"):
        assert steps == theirs.rows == 2 * NEW_TOKENS
    else:
        assert steps <= 2 * NEW_TOKENS and theirs.rows > steps


def test_sampling_settings_have_the_same_effect_on_both(model: str) -> None:
    """Tries every setting that changes greedy text."""
    changes = {"repetition_penalty": 1.5, "no_repeat_ngram": 1, "logit_bias": {40: 9.0}}
    plain = digests(measure.run(settings(model)))
    for name, value in changes.items():
        changed = settings(model, sampling=Sampling(temperature=0.0, **{name: value}))
        ours = digests(measure.run(changed))
        assert ours != plain, name
        assert digests(baseline.run(changed, "generate")) == ours, name


def test_several_requests_in_flight_give_the_same_texts(model: str) -> None:
    one, two = (measure.run(settings(model, Lookahead(3, 3, 3), concurrency=number)) for number in (1, 2))
    assert digests(one) == digests(two) and two.figures.cache_bytes > one.figures.cache_bytes


def test_settings_that_transformers_does_not_have_are_refused(model: str, tmp_path: Path) -> None:
    penalty = settings(model, sampling=Sampling(temperature=0.0, presence_penalty=1.0))
    with pytest.raises(ValueError, match=r"no sampling\.presence_penalty"):
        baseline.run(penalty, "generate")
    other = save_checkpoint(tmp_path, vocab_size=280, eos_token_id=EOS)
    with pytest.raises(ValueError, match="another tokenizer than the model"):
        baseline.run(settings(model, assistant=str(other)), "assisted")


def test_prompts_leave_room_for_new_tokens() -> None:
    assert fit([1, 2, 3, 4], context=5, max_new_tokens=3) == [3, 4]
    with pytest.raises(ValueError, match=r"max_new_tokens=5 leaves no room for a prompt in a context of 5 tokens"):
        fit([1], context=5, max_new_tokens=5)
