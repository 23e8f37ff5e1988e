"""What clients have of each request: nothing is delivered twice and nothing left out, whoever tells it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import pytest

from lp.methods.autoregressive import Autoregressive
from lp.request import Output, Request, TokenLogprob
from lp.sampling.settings import Sampling
from lp.statistics import Statistics
from lp.text.stopping import FinishReason, Stopping
from lp.trace import StepTrace
from parallel.groups.elastic import Load
from parallel.groups.epoch import RunningRequest
from parallel.groups.ledger import Ledger
from parallel.groups.messages import Abort, AddRequest


def submit(name: str) -> AddRequest:
    return AddRequest(Request(name, [1, 2], Autoregressive(), Sampling(), Stopping()))


def told(name: str, tokens: list[int], text: str, end: FinishReason | None = None, steps: int = 0, **more) -> Output:
    stats = Statistics(prompt_tokens=2, tokens=len(tokens), steps=steps)
    return Output(name, tokens, text, more.get("logprobs"), end, stats)


def begun(*names: str) -> Ledger:
    """A ledger in epoch 1, with these requests."""
    ledger = Ledger()
    for name in names:
        ledger.note(submit(name))
    begin(ledger, 1)
    return ledger


def begin(ledger: Ledger, epoch: int, leader: int = 0) -> list[RunningRequest]:
    """Begins an epoch with one leader, which has not served before. Returns what it is told."""
    ledger.begin(epoch, [])
    for request in ledger.waiting():
        ledger.place(request.id, leader)
    return ledger.running(leader)


def test_what_one_leader_tells_is_delivered_as_it_is() -> None:
    ledger = begun("a")
    for output in (told("a", [5], "x"), told("a", [6, 7], ""), told("a", [8], "yz", "length")):
        delivered = ledger.new_part(0, 1, output)
        assert delivered and (delivered.tokens, delivered.text) == (output.tokens, output.text)
    assert begin(ledger, 2) == []


def test_the_next_epoch_begins_with_what_was_delivered() -> None:
    ledger = begun("a", "b")
    ledger.new_part(0, 1, told("a", [5, 6], "xy"))
    entries = {entry.request.id: entry.tokens for entry in begin(ledger, 2)}
    assert entries == {"a": [5, 6], "b": []}


def test_a_new_leader_tells_it_all_again_and_the_client_hears_what_is_new() -> None:
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5, 6], "xy"))
    begin(ledger, 2)
    delivered = ledger.new_part(0, 2, told("a", [5, 6, 7], "xyz"))
    assert delivered and (delivered.tokens, delivered.text) == ([7], "z")
    delivered = ledger.new_part(0, 2, told("a", [8], "!"))
    assert delivered and (delivered.tokens, delivered.text) == ([8], "!")


def test_a_new_leader_that_has_nothing_new_is_not_heard() -> None:
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5, 6], "xy"))
    begin(ledger, 2)
    assert ledger.new_part(0, 2, told("a", [5, 6], "xy")) is None
    delivered = ledger.new_part(0, 2, told("a", [7], "z"))
    assert delivered and (delivered.tokens, delivered.text) == ([7], "z")


def test_text_and_tokens_are_counted_apart() -> None:
    """Text lags behind tokens, and may lag by more or by less when it is told again."""
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5, 6], "x"))  # the text of 6 is held back
    begin(ledger, 2)
    delivered = ledger.new_part(0, 2, told("a", [5, 6], "xy"))
    assert delivered and (delivered.tokens, delivered.text) == ([], "y")
    begin(ledger, 3)
    assert ledger.new_part(0, 3, told("a", [5], "")) is None
    assert ledger.new_part(0, 3, told("a", [6], "xy")) is None
    delivered = ledger.new_part(0, 3, told("a", [7], "z", "stop"))
    assert delivered and (delivered.tokens, delivered.text, delivered.finish_reason) == ([7], "z", "stop")


def traced(tokens: list[int], text: str, steps: int) -> Output:
    trace = StepTrace(steps - 1, [tokens[0]], [-1], "r", "0", [], tokens, 1, 1, 1.0)
    return replace(told("a", tokens, text, steps=steps), trace=trace)


def joined(steps: Iterable[tuple[list[int], str]]) -> tuple[list[int], str]:
    """The tokens and the text of several steps."""
    tokens, texts = zip(*steps, strict=True) if (steps := [*steps]) else ([], [])
    return [*chain.from_iterable(tokens)], "".join(texts)


@pytest.mark.parametrize(("num_told", "num_known"), [(2, 2), (2, 1), (2, 3), (1, 3), (0, 2), (0, 0)])
def test_steps_that_no_rank_has_told_come_together_without_a_trace(num_told: int, num_known: int) -> None:
    """num_told: steps that the leader told before it was lost. num_known: steps that the next leader knows of."""
    ledger, steps = begun("a"), [([5, 6], "x"), ([7], ""), ([8, 9], "yz"), ([4], "!")]  # the text of 7 is held back
    found = [ledger.new_part(0, 1, traced(*step, number)) for number, step in enumerate(steps[:num_told], 1)]
    begin(ledger, 2)
    num_replayed = max(num_told, num_known)  # the longest list of tokens counts
    found.append(ledger.new_part(0, 2, told("a", *joined(steps[:num_replayed]))))
    found += [ledger.new_part(0, 2, traced(*step, number)) for number, step in enumerate(steps[num_replayed:], 1)]

    delivered = [output for output in found if output]
    untold = [(output.tokens, output.text) for output in delivered if not output.trace]
    assert untold == ([joined(steps[num_told:num_known])] if num_known > num_told else [])
    assert joined((output.tokens, output.text) for output in delivered) == joined(steps)
    traces = [output.trace for output in delivered if output.trace]
    assert [trace.emitted for trace in traces] == [step[0] for step in (*steps[:num_told], *steps[num_replayed:])]
    assert [trace.step for trace in traces] == [*range(len(traces))]


def test_an_end_is_told_even_if_nothing_else_is_new() -> None:
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5], "x"))
    begin(ledger, 2)
    delivered = ledger.new_part(0, 2, told("a", [5], "x", "length"))
    assert delivered and (delivered.tokens, delivered.text, delivered.finish_reason) == ([], "", "length")


def test_log_probabilities_are_cut_with_their_tokens() -> None:
    ledger = begun("a")
    logprobs = [TokenLogprob(token, -1.0, []) for token in (5, 6, 7)]
    ledger.new_part(0, 1, told("a", [5], "x", logprobs=logprobs[:1]))
    begin(ledger, 2)
    assert ledger.new_part(0, 2, told("a", [5], "x")) is None  # what is replayed has none
    delivered = ledger.new_part(0, 2, told("a", [6, 7], "yz", logprobs=logprobs[1:]))
    assert delivered and delivered.logprobs == logprobs[1:]


def test_a_leader_whose_epoch_is_over_is_not_heard() -> None:
    ledger = begun("a")
    begin(ledger, 2)
    assert ledger.new_part(0, 1, told("a", [5], "x")) is None
    delivered = ledger.new_part(0, 2, told("a", [5], "x"))
    assert delivered and delivered.tokens == [5]


def test_what_is_said_of_requests_that_are_over_is_not_heard() -> None:
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5], "x", "length"))
    assert ledger.new_part(0, 1, told("a", [6], "y")) is None
    assert ledger.new_part(0, 1, told("unknown", [6], "y")) is None
    ledger.note(submit("b"))
    ledger.drop_all()
    assert ledger.new_part(0, 1, told("b", [6], "y")) is None and begin(ledger, 2) == []


def test_costs_add_up_over_epochs() -> None:
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5, 6], "xy", steps=2))
    begin(ledger, 2)
    ledger.new_part(0, 2, told("a", [5, 6], "xy", steps=0))
    delivered = ledger.new_part(0, 2, told("a", [7], "z", "length", steps=1))
    assert delivered and delivered.stats.steps == 3 and delivered.stats.prompt_tokens == 2


def test_a_request_cancelled_while_nobody_leads_ends() -> None:
    ledger = begun("a", "b")
    ledger.new_part(0, 1, told("a", [5], "x"))
    ledger.note(Abort("a"))
    ledger.note(Abort("unknown"))
    (ended,) = ledger.end_cancelled()
    assert (ended.request_id, ended.finish_reason, ended.tokens) == ("a", "cancelled", [])
    assert [entry.request.id for entry in begin(ledger, 2)] == ["b"] and ledger.end_cancelled() == []


def test_why_there_is_no_room_is_delivered_whole() -> None:
    """Its text is a message, which the text that the client has is not a beginning of."""
    ledger = begun("a")
    ledger.new_part(0, 1, told("a", [5, 6], "xyz"))
    begin(ledger, 2)
    delivered = ledger.new_part(0, 2, told("a", [], "too large", "no_room"))
    assert delivered and delivered.text == "too large"
    assert begin(ledger, 3) == []


def test_a_request_that_moves_is_told_again_by_its_new_leader_alone() -> None:
    ledger = begun("a", "b")
    ledger.new_part(0, 1, told("a", [5, 6], "xy"))
    ledger.place("a", 1)
    assert (
        ledger.new_part(0, 1, told("a", [7], "z")) is None
        and ledger.new_part(0, 1, told("a", [], "", "cancelled")) is None
    )
    delivered = ledger.new_part(1, 1, told("a", [5, 6, 7], "xyz"))
    assert delivered and (delivered.tokens, delivered.text) == ([7], "z")
    assert ledger.loads([0, 1, 2]) == {0: Load(["b"], 2), 1: Load(["a"], 0), 2: Load()}


def test_a_request_that_has_moved_or_is_cancelled_stays_where_it_is() -> None:
    ledger = begun("a", "b", "c")
    ledger.new_part(0, 1, told("a", [5, 6], "xy"))
    assert [(one.request_id, one.num_tokens, one.has_begun) for one in ledger.movable()] == [
        ("a", 4, True), ("b", 2, False), ("c", 2, False),
    ]  # fmt: skip
    ledger.place("b", 1)
    ledger.note(Abort("c"))
    assert [one.request_id for one in ledger.movable()] == ["a"]
    ledger.begin(2, [1])
    ledger.place("a", 0)
    assert [one.request_id for one in ledger.movable()] == ["a", "b"]


def test_what_ranks_hold_of_a_request_counts_until_one_of_them_serves_it() -> None:
    ledger = begun("a", "b")
    ledger.hold(1, 0, {"a": 7, "b": 2, "gone": 4})
    ledger.hold(1, 1, {"a": 5})
    ledger.hold(0, 1, {"b": 9})  # of an epoch that is over
    ledger.begin(2, [])
    assert ledger.cached("a") == {0: 7, 1: 5} and ledger.cached("b") == {0: 2}
    ledger.place("a", 1)
    assert ledger.cached("a") == {} and ledger.cached("b") == {0: 2}


def test_leaders_that_go_on_keep_their_requests() -> None:
    ledger = begun("a", "b", "c")
    ledger.place("b", 1)
    ledger.place("c", 2)
    ledger.begin(2, [0, 2])
    assert [request.id for request in ledger.waiting()] == ["b"]
    assert [ledger.rank_of(name) for name in ("a", "b", "c", "unknown")] == [0, None, 2, None]
