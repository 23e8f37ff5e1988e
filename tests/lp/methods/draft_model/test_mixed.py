"""decode=auto with a second model: the same tokens as without it, and drafts of all sources in one tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, BestOf, Contrastive, DraftModel, Engine, Sampling, Stopping
from lp.drafting import history
from lp.grammar.settings import Grammar
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.with_draft_model import MixedDecoder
from lp.methods.draft_model import rounds
from lp.platform.library import python_alone
from lp.request import Completion
from lp.runner.single_device import SingleDevice
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes
from tests.lp.drafting.reference.drafter import ReferenceDrafters
from tests.lp.methods.draft_model.test_draft_model import GREEDY, NUM_TOKENS, SAMPLED, STOPPING, run_all, tokens_of
from tests.lp.test_lossless import make_prompt
from tests.models import generate_greedily
from tests.slow import slow_except

EngineOf = Callable[[str], Engine]
SIZES = [Auto(), Auto(rows=12), Auto(rows=5, window_drafts=False), Auto(max_rows=40, max_window=5, ngram=4)]
# Rows cost little, or so much that most drafts do not pay: then steps become plain, and speculate again later.
CURVES = {
    "cheap rows": StepTimes((1, 64), (0.010, 0.012)),
    "dear rows": StepTimes((1, 2, 64), (0.010, 0.018, 0.4)),
    "not known": None,
}


def with_cost(engine: Engine, cost: float, times: StepTimes | None = None) -> Engine:
    """Another engine with the same models. cost: of the second model, in plain steps."""
    draft = replace(engine.checkpoint.extensions["draft"], relative_costs=(cost,) * 4)  # type: ignore[type-var]
    return Engine(replace(engine.checkpoint, extensions={"draft": draft}), step_times=times)


@pytest.mark.parametrize(
    ("curve", "draft"),
    slow_except(
        [("cheap rows", "itself"), ("cheap rows", "4 bits"), ("dear rows", "another"), ("not known", "another")],
        ("cheap rows", "itself"),
        ("cheap rows", "4 bits"),
        ("not known", "another"),
    ),
)
def test_greedy_tokens_are_those_of_generate(
    curve: str, draft: str, drafting: EngineOf, llama_reference: PreTrainedModel
) -> None:
    engine = with_cost(drafting(draft), 0.1, CURVES[curve])
    for prompt in ([7], [*make_prompt(20), *make_prompt(20)]):
        expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
        for decode in SIZES:
            assert tokens_of(engine, prompt, decode, GREEDY).token_ids == expected, (len(prompt), decode)


@pytest.mark.parametrize(("draft", "sampling"), [("itself", SAMPLED[0]), *(("another", one) for one in SAMPLED[1:])])
def test_sampled_tokens_are_those_of_plain_sampling(draft: str, sampling: Sampling, drafting: EngineOf) -> None:
    prompt, engine = make_prompt(50), with_cost(drafting(draft), 0.1)
    expected = tokens_of(engine, prompt, Autoregressive(), sampling).token_ids
    for decode in SIZES:
        assert tokens_of(engine, prompt, decode, sampling).token_ids == expected, decode


def test_drafts_made_in_python(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library and its reference give the same trees, so the steps are as many. Without both, texts are the same."""
    prompt, decodes = [*make_prompt(30), *make_prompt(30)], [Auto(), Auto(rows=12)]
    native = [tokens_of(with_cost(drafting("first layers"), 0.1), prompt, decode, GREEDY) for decode in decodes]
    monkeypatch.setattr(history, "usual_drafters", ReferenceDrafters)
    for decode, before in zip(decodes, native, strict=True):
        done = tokens_of(with_cost(drafting("first layers"), 0.1), prompt, decode, GREEDY)
        assert (done.token_ids, done.stats.steps) == (before.token_ids, before.stats.steps)
    monkeypatch.undo()
    with python_alone():
        simple = [tokens_of(with_cost(drafting("first layers"), 0.1), prompt, decode, GREEDY) for decode in decodes]
    assert [one.token_ids for one in simple] == [one.token_ids for one in native]
    assert all(one.stats.accepted["draft_model"] for one in simple)


@pytest.mark.parametrize("sampling", [GREEDY, *SAMPLED], ids=range(1 + len(SAMPLED)))
def test_what_the_second_model_drafts_is_accepted(sampling: Sampling, drafting: EngineOf) -> None:
    engine = with_cost(drafting("itself"), 0.05)
    stats = tokens_of(engine, make_prompt(40), Auto(), sampling).stats
    alone = tokens_of(engine, make_prompt(40), Auto(model_drafts=False), sampling).stats
    assert stats.accepted["draft_model"] > NUM_TOKENS / 2 and stats.tokens_per_step > 3 > 2 > alone.tokens_per_step
    assert not alone.proposed["draft_model"]


def test_other_sources_still_draft(drafting: EngineOf, llama_reference: PreTrainedModel) -> None:
    """The prompt ends as the text goes on, so what followed before is right, and the second model is not needed."""
    start = make_prompt(12)
    text = [*start, *generate_greedily(llama_reference, start, 60)]
    prompt = [*text, *text[:20]]
    expected = generate_greedily(llama_reference, prompt, NUM_TOKENS)
    engine = with_cost(drafting("another"), 0.3)
    done = tokens_of(engine, prompt, Auto(rows=16), GREEDY)
    plain = tokens_of(engine, prompt, Auto(rows=16, model_drafts=False), GREEDY)
    assert done.token_ids == plain.token_ids == expected
    assert set(done.stats.proposed) >= {"draft_model", "suffix", "recycled"}
    assert done.stats.accepted.total() - done.stats.accepted["draft_model"] > 0


def test_a_second_model_that_costs_too_much_is_asked_rarely(drafting: EngineOf) -> None:
    engine, prompt = with_cost(drafting("itself"), 1.5), make_prompt(20)
    dear = tokens_of(engine, prompt, Auto(), GREEDY).stats
    cheap = tokens_of(with_cost(drafting("itself"), 0.05), prompt, Auto(), GREEDY).stats
    assert dear.proposed["draft_model"] <= 8 * NUM_TOKENS / 16 < cheap.proposed["draft_model"]
    assert cheap.steps < dear.steps / 2


def test_what_others_are_sure_of_is_not_asked(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token that repeats: the text itself says what follows."""
    engine, num_asked = with_cost(drafting("itself"), 0.3), list[int]()
    biased = Sampling(temperature=0.0, logit_bias={7: 100.0}, seed=0)
    real = rounds._one_round
    monkeypatch.setattr(rounds, "_one_round", lambda asked: (num_asked.append(len(asked)), real(asked)))
    stats = engine.generate([7, 7], decode=Auto(), sampling=biased, stopping=Stopping(200, ignore_eos=True)).stats
    assert len(num_asked) < stats.steps / 2


def test_nothing_is_new_without_a_second_model(drafting: EngineOf, checkpoint_folder: Callable[[str], object]) -> None:
    def decoder_of(engine: Engine, decode: Auto) -> type:
        request = engine.request_builder.build([5, 6], decode, GREEDY, STOPPING, "it")
        return type(RequestState(request, engine.checkpoint, engine.history).decoder)

    plain = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu", step_times="off")
    assert decoder_of(plain, Auto()) is AutoDecoder
    assert decoder_of(drafting("itself"), Auto(model_drafts=False)) is AutoDecoder
    assert decoder_of(drafting("itself"), Auto()) is MixedDecoder


@pytest.mark.parametrize(
    ("curve", "sampling"),
    slow_except(
        [("dear rows", GREEDY), ("cheap rows", SAMPLED[1]), ("not known", SAMPLED[0])], ("cheap rows", SAMPLED[1])
    ),
)
def test_mixed_batches(sampling: Sampling, curve: str, drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "CHUNK", 24)  # long prompts are read over several steps
    engine = with_cost(drafting("first layers"), 0.1, CURVES[curve])
    prompts = [make_prompt(length, seed=length) for length in (3, 90, 40, 25, 61)]
    decodes = [Auto(), Auto(rows=8), Auto(model_drafts=False), DraftModel(), Auto(max_rows=20)]
    expected = [
        tokens_of(engine, prompt, Autoregressive(), replace(sampling, seed=number)).token_ids
        for number, prompt in enumerate(prompts)
    ]
    assert run_all(engine, prompts, sampling, decodes) == expected


def test_sequences_of_a_step_draft_in_the_same_forwards(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_cost(drafting("itself"), 0.05)
    second, sizes = engine.checkpoint.extensions["draft"].model, list[int]()
    real = second.forward_many
    monkeypatch.setattr(second, "forward_many", lambda given: (sizes.append(len(given)), real(given))[1])
    run_all(engine, [make_prompt(20, seed) for seed in range(3)], GREEDY, [Auto(rows=8)] * 3)
    assert sizes.count(3) > 8  # each sequence needs more of them by itself


@pytest.mark.parametrize("decode", SIZES[:2], ids=["auto", "rows"])
def test_a_grammar_around_it(decode: Auto, drafting: EngineOf) -> None:
    engine, grammar = with_cost(drafting("itself"), 0.05), Grammar("regex", "([a-f]{2}(xyz|=1)){2,9}")
    settings = {"sampling": GREEDY, "stopping": Stopping(24), "grammar": grammar}
    expected = engine.generate("def ", decode=Autoregressive(), **settings).text
    assert engine.generate("def ", decode=decode, **settings).text == expected


@pytest.mark.parametrize("around", [BestOf, partial(Contrastive, weight=0.2, amateur_temperature=2.0)])
def test_it_drafts_inside_another_method(around: Callable[[str], BestOf | Contrastive], drafting: EngineOf) -> None:
    engine, prompt = with_cost(drafting("itself"), 0.05), make_prompt(20)
    plain, mixed = (tokens_of(engine, prompt, around(inner), SAMPLED[0]) for inner in ("autoregressive", "auto"))
    assert mixed.token_ids == plain.token_ids
    assert mixed.stats.accepted["draft_model"] > 0 and mixed.stats.steps < plain.stats.steps


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
def test_a_request_is_taken_over(sampling: Sampling, drafting: EngineOf) -> None:
    """By an engine that has only its tokens."""
    checkpoint, prompt = with_cost(drafting("first layers"), 0.1).checkpoint, make_prompt(30)
    expected = tokens_of(Engine(checkpoint), prompt, Autoregressive(), sampling).token_ids
    for num_known in (0, 1, 17):
        runner = SingleDevice(checkpoint.model)
        engine = Engine(checkpoint, runner)
        request = engine.request_builder.build(prompt, Auto(max_rows=16), sampling, STOPPING, "it")
        engine.add_request(request)
        engine.step()
        (replayed,) = engine.resume(runner, [(request, expected[:num_known])], None)
        done = Completion()
        done.extend(replayed)
        while done.finish_reason is None:
            (output,) = engine.step()
            done.extend(output)
        assert done.token_ids == expected


def test_requests_learn_together_what_the_second_model_is_worth(drafting: EngineOf) -> None:
    """A model that knows nothing of the text is asked less often by the requests that come later."""
    engine, counts = with_cost(drafting("another"), 0.2), list[int]()
    for seed in range(4):
        counts.append(tokens_of(engine, make_prompt(20, seed), Auto(), GREEDY).stats.proposed["draft_model"])
    assert sum(counts[2:]) < sum(counts[:2])


def test_traces_name_the_sources(drafting: EngineOf) -> None:
    done = with_cost(drafting("first layers"), 0.05).generate(
        [*make_prompt(20), *make_prompt(20)], decode=Auto(rows=12), sampling=GREEDY, stopping=STOPPING, trace=True
    )
    letters = {letter for step in done.trace for letter in step.sources}
    assert letters >= {"r", "d", "a"}
    for step in done.trace:
        assert len(step.sources) == len(step.tokens) == len(step.parents)
    assert sum(done.stats.proposed.values()) >= sum(step.sources.count("d") for step in done.trace) > 0
