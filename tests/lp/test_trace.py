"""Traces: what engines record, alone and beside others, and as data: JSON, sizes, and numbers of ranks."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from lp import Auto, Autoregressive, Engine, Grammar, Jacobi, Lookahead, Output, PromptLookup, StepTrace, Stopping
from lp.decoder import Described
from lp.drafting.account import priors_of_sources
from lp.request import DecodingMethod, Request
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes
from lp.trace import LEGEND, LETTERS, OTHER, BatchFigures, RecordedStep, digit_of
from lp.tree import TreeBuilder, verify

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


def made_trace(num_nodes: int, num_accepted: int, seed: int = 0) -> StepTrace:
    """A trace of a random tree, whose accepted path is its nodes 1, 2, ..."""
    drawn = random.Random(seed)
    parents = [
        -1,
        *(row - 1 if row <= num_accepted else drawn.randrange(max(0, row - 9), row) for row in range(1, num_nodes)),
    ]
    tokens = [drawn.randrange(50_000) for _ in range(num_nodes)]
    accepted = [*range(1, num_accepted + 1)]
    emitted = [*tokens[1 : num_accepted + 1], 7]
    sources, ranks = "r" + "s" * (num_nodes - 1), "0" * num_nodes
    return StepTrace(3, tokens, parents, sources, ranks, accepted, emitted, num_nodes + 5, 2, 21.25, 20.5, [15, 5], 99)


def size(trace: StepTrace) -> int:
    return len(json.dumps(trace.to_dict(), separators=(",", ":")))


@pytest.mark.parametrize("num_nodes", [1, 2, 40, 128, 600])
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_trace_keeps_the_accepted_path(num_nodes: int, seed: int) -> None:
    whole = made_trace(num_nodes, min(6, num_nodes - 1), seed)
    cut = whole.within(1000)
    assert size(cut) <= 1000
    assert cut.omitted == len(whole.tokens) - len(cut.tokens) and (cut == whole) == (size(whole) <= 1000)
    assert cut.emitted == whole.emitted and cut[7:13] == whole[7:13]
    assert [cut.tokens[row] for row in cut.accepted] == cut.emitted[:-1]
    assert cut.parents[0] == -1 and all(0 <= parent < row for row, parent in enumerate(cut.parents) if row)
    assert paths(cut) <= paths(whole)
    left = depths(whole)[len(cut.tokens) :] if cut.omitted else []
    assert not left or max(depths(cut)) <= max(depths(whole))
    if cut.omitted:  # and no more is left out than must be: another node would be of about twenty bytes
        assert size(cut) > 1000 - 60


def paths(trace: StepTrace) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(trace.tokens, trace.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


def depths(trace: StepTrace) -> list[int]:
    return sorted(len(path) for path in paths(trace))


def test_the_deepest_nodes_go_first() -> None:
    whole = made_trace(300, 0, seed=4)
    cut = whole.within(1000)
    assert depths(cut) == depths(whole)[: len(cut.tokens)]


def test_what_is_accepted_stays_even_if_it_is_too_large() -> None:
    cut = made_trace(400, 150).within(1000)
    assert len(cut.accepted) == 150 and len(cut.tokens) == 151 and cut.omitted == 249


@pytest.mark.parametrize("came_true", [None, 2])
def test_ends_that_did_not_come_true_go_first(came_true: int | None) -> None:
    ends = [[1, number, 7 + number] for number in (1, 5, 3, 9)]
    whole = made_trace(45, 3)._replace(drafting="1", drafted_for=ends, came_true=came_true)
    assert whole.within(size(whole)) == whole
    cut = whole.within(size(whole) - 1)
    assert cut.tokens == whole.tokens and cut.drafting == "1"
    assert (cut.drafted_for, cut.came_true) == (([], None) if came_true is None else ([[1, 3, 10]], 0))
    small = whole.within(600)
    assert small.omitted and size(small) <= 600 and small.drafted_for == cut.drafted_for


def test_a_trace_is_read_back_as_it_was() -> None:
    trace = made_trace(30, 3)
    assert StepTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    with pytest.raises(TypeError):
        StepTrace.from_dict({"step": 1})


def test_ranks_are_renamed() -> None:
    trace = made_trace(4, 0)._replace(ranks="0120", drafting="12", drafted_for=[[1, 0, 7], [2, 3, 8]])
    renamed = trace.among([2, 0, 40])
    assert (renamed.ranks, renamed.drafting) == ("20*2", "0*") and renamed.drafted_for == [[0, 0, 7], [40, 3, 8]]
    assert [digit_of(rank) for rank in (0, 9, 10, 35, 36)] == ["0", "9", "a", "z", "*"]


def test_every_source_has_a_letter() -> None:
    for source in priors_of_sources(Auto()):
        assert LETTERS[source] != OTHER, f"{source} needs a letter in lp/trace.py"
    assert LETTERS["a source from elsewhere"] == OTHER
    assert set(LETTERS.values()) | {OTHER} == LEGEND.keys() and len(set(LEGEND.values())) == len(LEGEND)


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
    outputs: dict[str, list[Output]] = {"traced": [], "plain": [], "later": []}
    for number in range(60):
        if number == 2:
            llama.add_request(later)
        if llama.is_idle:
            break
        for output in llama.step():
            outputs[output.request_id].append(output)
    assert all(output.trace is None for name in ("plain", "later") for output in outputs[name])
    traces = [output.trace for output in outputs["traced"]]
    assert {2, 3} <= {trace.sequences for trace in traces if trace}
    for output in outputs["traced"]:
        assert output.trace and output.trace.emitted == output.tokens
        check(output.trace)
        assert Output.from_dict(output.to_dict()).trace == output.trace
    assert max(trace.rows for trace in traces if trace) > len(llama.request_builder.encode(PROMPT * 3))


def test_the_curve_says_what_was_expected(llama: Engine) -> None:
    times = StepTimes((1, 64), (0.010, 0.020))
    engine = Engine(llama.checkpoint, step_times=times)
    traces = engine.generate(PROMPT, max_new_tokens=20, decode=METHODS["lookahead"], trace=True).trace
    assert all(trace.expected_ms and 10 <= trace.expected_ms <= 25 for trace in traces)
    assert all(trace.expected_ms is None for trace in llama.generate(PROMPT, max_new_tokens=4, trace=True).trace)


def test_the_accepted_path_is_one_branch() -> None:
    """Though a draft and a cell of the window hold the same token, and only the cell has what follows."""
    builder = TreeBuilder(5)
    builder.add(7, 0)
    cell = builder.add(7, 0)
    builder.add(9, cell)
    tree = builder.build()
    accepted = verify(tree, np.array([7, 9, 9, 4]))
    assert accepted.rows == [0, 1, 3] and accepted.tokens == [7, 9, 4]
    step = RecordedStep(
        tree,
        Described(["root", "suffix", "cell", "cell"]),
        BatchFigures(4, 1, 1.0, None),
        None,
        accepted.rows,
        [7, 9, 4],
    )
    assert step.trace(0).accepted == [2, 3]
    step.emitted = [7]
    assert step.trace(0).accepted == [1], "what follows the end of a text does not count"


def test_nothing_is_recorded_unless_asked_for(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("nobody has asked for a trace")

    monkeypatch.setattr("lp.scheduling.step_clock.StepClock.record", fail)
    monkeypatch.setattr("lp.scheduling.request_state.TraceRecorder", fail)
    monkeypatch.setattr("lp.methods.auto.decoder.AutoDecoder.describe", fail)
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
