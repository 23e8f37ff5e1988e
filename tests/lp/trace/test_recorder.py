"""What engines record: every method, alone and beside others, and nothing for those who do not ask."""

from __future__ import annotations

import pytest

from lp import Auto, Autoregressive, Engine, Grammar, Jacobi, Lookahead, Output, PromptLookup, StepTrace, Stopping
from lp.request import DecodingMethod, Request
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes

PROMPT = "def first(x):\n    return x\n\ndef second(x):\n    return"
METHODS: dict[str, DecodingMethod] = {
    "auto": Auto(),
    "rows": Auto(rows=30, max_window=6),
    "autoregressive": Autoregressive(),
    "lookahead": Lookahead(7, 4, 5),
    "prompt_lookup": PromptLookup(3, 4),
    "jacobi": Jacobi(6),
}
LETTERS_OF = {
    "auto": set("rwnsai"),
    "rows": set("rwnsai"),
    "autoregressive": {"r"},
    "lookahead": set("rwnpg"),
    "prompt_lookup": set("rpg"),
    "jacobi": {"r", "j"},
}


def check(trace: StepTrace) -> None:
    """Asserts that a trace is whole in itself."""
    assert trace.parents[0] == -1 and trace.sources[0] == "r" and trace.sources.count("r") == 1
    assert len(trace.tokens) == len(trace.parents) == len(trace.sources) == len(trace.ranks)
    path = [0, *trace.accepted]
    assert [trace.parents[row] for row in path[1:]] == path[:-1]
    assert [trace.tokens[row] for row in trace.accepted] == trace.emitted[: len(trace.accepted)]
    assert len(trace.emitted) - len(trace.accepted) in (0, 1) and trace.step_ms > 0 and not trace.omitted


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_traces_tell_the_text(llama: Engine, method: str, temperature: float) -> None:
    given = {"max_new_tokens": 40, "decode": METHODS[method], "temperature": temperature, "seed": 5}
    completion = llama.generate(PROMPT, trace=True, **given)
    before = llama.request_builder.encode(PROMPT)
    for number, trace in enumerate(completion.trace):
        check(trace)
        assert trace.step == number and trace.tokens[0] == before[-1]
        assert set(trace.sources) <= LETTERS_OF[method] and trace.ranks == "0" * len(trace.tokens)
        assert (
            trace.sequences == 1
            and trace.rows >= len(trace.tokens)
            and (number == 0 or trace.rows == len(trace.tokens))
        )
        before += trace.emitted
    assert completion.stats.steps == len(completion.trace)
    assert [token for trace in completion.trace for token in trace.emitted] == completion.token_ids
    plain = llama.generate(PROMPT, **given)
    assert plain.token_ids == completion.token_ids and plain.trace == []
    drafted = sum(sum(letter not in "rw" for letter in trace.sources) for trace in completion.trace)
    assert drafted <= completion.stats.proposed.total() <= drafted + 40  # cells that were accepted count as proposed


def test_window_and_pool_are_told(llama: Engine) -> None:
    traces = llama.generate(PROMPT, max_new_tokens=40, decode=METHODS["lookahead"], trace=True).trace
    assert [trace.window for trace in traces[:5]] == [[7, 1], [7, 2], [7, 3], [7, 3], [7, 3]]
    pools = [trace.pool for trace in traces]
    assert pools[0] and pools == sorted(pools, key=lambda pool: pool or 0) and pools[-1] != pools[0]
    assert all(trace.sources.count("w") == 7 * trace.window[1] for trace in traces if trace.window)
    lookup = llama.generate(PROMPT, max_new_tokens=10, decode=PromptLookup(), trace=True).trace
    assert all(trace.window is None and trace.pool for trace in lookup)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "autoregressive"])
def test_what_a_grammar_adds_is_its_own(llama: Engine, method: str) -> None:
    grammar = Grammar.choice(["return the first one", "return the second one"])
    given = {"max_new_tokens": 30, "decode": METHODS[method], "grammar": grammar}
    completion = llama.generate(PROMPT, trace=True, **given)
    for trace in completion.trace:
        check(trace)
        assert set(trace.sources) <= LETTERS_OF[method] | {"m"}
    assert any("m" in trace.sources for trace in completion.trace)
    assert completion.token_ids == llama.generate(PROMPT, **given).token_ids


def test_texts_that_are_cut_have_the_tokens_that_count(llama: Engine) -> None:
    whole = llama.generate(PROMPT, max_new_tokens=40, decode=METHODS["prompt_lookup"]).token_ids
    for wanted in range(1, 40, 3):
        traces = llama.generate(PROMPT, max_new_tokens=wanted, decode=METHODS["prompt_lookup"], trace=True).trace
        assert [token for trace in traces for token in trace.emitted] == whole[:wanted]
        for trace in traces:
            check(trace)
    stopping = Stopping(max_new_tokens=40, stop_token_ids=[whole[9]])
    traces = llama.generate(PROMPT, stopping=stopping, decode=METHODS["auto"], trace=True).trace
    for trace in traces:
        check(trace)


def test_requests_that_share_steps(llama: Engine) -> None:
    """One is traced, the other is not; a third one's prompt is fed meanwhile."""
    build = llama.request_builder.build
    traced = build(PROMPT, METHODS["rows"], stopping=Stopping(24, ignore_eos=True), request_id="traced", trace=True)
    plain = build(PROMPT, METHODS["rows"], stopping=Stopping(24, ignore_eos=True), request_id="plain")
    later = build(PROMPT * 3, METHODS["rows"], stopping=Stopping(4, ignore_eos=True), request_id="later")
    for request in (traced, plain):
        llama.add_request(request)
    told: dict[str, list[Output]] = {"traced": [], "plain": [], "later": []}
    for number in range(60):
        if number == 2:
            llama.add_request(later)
        if llama.is_idle:
            break
        for progress in llama.step():
            told[progress.request_id].append(progress)
    assert all(progress.trace is None for name in ("plain", "later") for progress in told[name])
    traces = [progress.trace for progress in told["traced"]]
    assert {2, 3} <= {trace.sequences for trace in traces if trace}
    for progress in told["traced"]:
        assert progress.trace and progress.trace.emitted == progress.tokens
        check(progress.trace)
        assert Output.from_dict(progress.to_dict()).trace == progress.trace
    assert max(trace.rows for trace in traces if trace) > len(llama.request_builder.encode(PROMPT * 3))


def test_the_curve_says_what_was_expected(llama: Engine) -> None:
    times = StepTimes((1, 64), (0.010, 0.020))
    engine = Engine(llama.checkpoint, step_times=times)
    traces = engine.generate(PROMPT, max_new_tokens=20, decode=METHODS["lookahead"], trace=True).trace
    assert all(trace.expected_ms and 10 <= trace.expected_ms <= 25 for trace in traces)
    assert all(trace.expected_ms is None for trace in llama.generate(PROMPT, max_new_tokens=4, trace=True).trace)


def test_nothing_is_recorded_unless_asked_for(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("nobody has asked for a trace")

    monkeypatch.setattr("lp.scheduling.step_clock.StepClock.record", fail)
    monkeypatch.setattr("lp.scheduling.request_state.TraceRecorder", fail)
    monkeypatch.setattr("lp.methods.auto.decoder.AutoDecoder.described", fail)
    assert llama.generate(PROMPT, max_new_tokens=8).trace == []
    with pytest.raises(AssertionError, match="nobody has asked"):
        llama.generate(PROMPT, max_new_tokens=8, trace=True)


def test_requests_travel_with_what_they_ask_for(llama: Engine) -> None:
    request = llama.request_builder.build(PROMPT, trace=True)
    assert Request.from_dict(request.to_dict(), request.decode) == request and request.trace


def test_a_tree_of_the_library_is_listed_as_its_arrays_are(llama: Engine) -> None:
    """Before its arrays have been made, and after."""
    generation = RequestState(llama.request_builder.build(PROMPT, METHODS["rows"]), llama.checkpoint, llama.history)
    tree = generation.plan(100)
    before = tree.as_lists()
    assert len(before[0]) == len(tree) > 1
    assert before == (tree.tokens.tolist(), tree.parents.tolist()) == tree.as_lists()
