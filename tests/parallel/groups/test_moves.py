"""Requests that move between groups of a single rank, with their keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.request import DecodingMethod, Request
from lp.runner.single_device import SingleDevice
from parallel.groups.dispatcher import Dispatcher
from parallel.groups.epoch import Epoch
from parallel.groups.messages import (
    Abort,
    AddRequest,
    HandedOver,
    HandOver,
    KVChunk,
    RankMessage,
    Regroup,
    encode,
    from_front_end,
    from_rank,
)
from parallel.groups.worker import Moves
from parallel.runners import copying
from parallel.runners.copying import CacheTransfer
from tests.parallel.groups.test_dispatcher import Sent, begun, divided
from tests.parallel.groups.test_ledger import submit, told

NUM_TOKENS = 60


def moving() -> tuple[Dispatcher, Sent]:
    """Rank 0 serves a and c, and rank 1 nothing any more, so c is to move."""
    dispatcher, sent = begun(divided(1, 0, 1))
    dispatcher.hand_out([AddRequest(replace(submit(name).request, prompt=[1] * 20)) for name in "abc"])
    dispatcher.new_part(0, 1, told("a", [5, 6], "xy"))
    dispatcher.new_part(0, 1, told("c", [5] * 40, "x"))
    del sent[:]
    dispatcher.new_part(1, 1, told("b", [5], "x", "length"))
    assert sent == [(0, 1, HandOver("c"))]
    del sent[:]
    return dispatcher, sent


def test_a_long_request_stays_until_its_keys_and_values_have_been_sent() -> None:
    dispatcher, sent = moving()
    assert dispatcher.target_of("c") == 1 and dispatcher.target_of("a") is None
    new = dispatcher.new_part(0, 1, told("c", [6], "y"))
    assert new and new.tokens == [6], "it goes on where it is"
    dispatcher.handed_over(1, "c")
    ((rank, _, command),) = sent
    assert rank == 1 and isinstance(command, AddRequest) and command.tokens == (*[5] * 40, 6)
    assert dispatcher.target_of("c") is None
    assert dispatcher.new_part(0, 1, told("c", [7], "z")) is None
    new = dispatcher.new_part(1, 1, told("c", [*[5] * 40, 6, 7], "xyz"))
    assert new and (new.tokens, new.text) == ([7], "z")


def test_the_other_group_forgets_a_request_that_ends_before_it_has_moved() -> None:
    dispatcher, sent = moving()
    dispatcher.new_part(0, 1, told("c", [6], "y", "length"))
    assert sent == [(1, 1, Abort("c"))]
    dispatcher.handed_over(1, "c")
    assert len(sent) == 1


def test_a_request_that_is_cancelled_while_it_moves_is_aborted_where_it_goes() -> None:
    dispatcher, sent = moving()
    dispatcher.hand_out([Abort("c")])
    dispatcher.handed_over(1, "c")
    assert [(rank, type(command)) for rank, _, command in sent] == [(0, Abort), (1, AddRequest), (1, Abort)]


@pytest.mark.parametrize("is_sent", [False, True])
def test_the_end_of_an_epoch_ends_all_moves(is_sent: bool) -> None:
    dispatcher, sent = moving()
    dispatcher.hand_out([Regroup()])
    del sent[:]
    if is_sent:
        dispatcher.handed_over(1, "c")
    assert sent == []
    begins, _ = dispatcher.begin(Epoch(2, [0, 1]))
    assert {entry.request.id: len(entry.tokens) for entry in begins[0].running} == {"a": 2, "c": 40}
    dispatcher.handed_over(1, "c")
    assert sent == [] and dispatcher.target_of("c") is None


def test_pieces_travel_both_ways_as_they_are() -> None:
    chunk = KVChunk(3, "a", 17, 5, b'\n\x00{"type"}\n')
    assert from_rank(encode(chunk)) == chunk == from_front_end(encode(chunk))
    with pytest.raises(ValueError):
        from_rank(encode(replace(chunk, begin="17")))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engines(checkpoint_folder: Callable[[str], Path]) -> tuple[Engine, Engine]:
    folder = str(checkpoint_folder("llama"))
    return Engine.from_pretrained(folder, device="cpu"), Engine.from_pretrained(folder, device="cpu")


def moves_of(engine: Engine, sent: list[RankMessage] | None = None) -> Moves:
    assert isinstance(engine.runner, SingleDevice)
    return Moves(engine, CacheTransfer(engine.runner), 1, ([] if sent is None else sent).append)


def request_for(engine: Engine, method: DecodingMethod, name: str) -> Request:
    prompt = [3 + number * number % 50 for number in range(300)]
    return engine.request_builder.build(
        prompt, method, Sampling(0.8, seed=7), Stopping(NUM_TOKENS, ignore_eos=True), request_id=name
    )


def tokens_of(engine: Engine, most_steps: int = 1000) -> list[int]:
    """The tokens of its only request, step after step."""
    tokens: list[int] = []
    for _ in range(most_steps):
        if engine.is_idle:
            break
        for output in engine.step():
            tokens += output.tokens
    return tokens


@pytest.mark.parametrize("method", [Autoregressive(), Lookahead()], ids=lambda method: method.method)
def test_a_text_goes_on_with_its_keys_and_values(
    engines: tuple[Engine, Engine], method: DecodingMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PIECE_BYTES", 2**15)
    check_move(*engines, method)


def check_move(first: Engine, second: Engine, method: DecodingMethod) -> None:
    """Moves a request from one engine to the other while it is decoded. Its keys and values must need some pieces."""
    first.add_request(request_for(first, method, "undisturbed"))
    undisturbed = tokens_of(first)
    assert len(undisturbed) == NUM_TOKENS
    request, sent = request_for(first, method, "moved"), list[RankMessage]()
    leaving = moves_of(first, sent)
    first.add_request(request)
    tokens = tokens_of(first, 5)
    leaving.leave("moved")
    while not any(isinstance(message, HandedOver) for message in sent):
        tokens += tokens_of(first, 1)
        leaving.advance()
    assert first.is_idle and len(tokens) < NUM_TOKENS, "it has left before its end"
    chunks = [message for message in sent if isinstance(message, KVChunk)]
    assert len(chunks) > 3, "between several steps"

    arriving = moves_of(second)
    for chunk in chunks:
        arriving.receive(chunk)
    assert arriving.has_waiting()
    arriving.advance()
    replayed = second.add_request(request, tokens)
    arriving.arrive("moved")
    assert replayed and replayed.tokens == tokens
    (state,) = second.scheduler
    assert state.num_uncomputed <= 8, "next to nothing is computed again"
    assert [*tokens, *tokens_of(second)] == undisturbed


def test_what_came_for_nothing_is_freed(engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PIECE_BYTES", 2**15)
    first, second = engines
    request, sent = request_for(first, Autoregressive(), "a"), list[RankMessage]()
    leaving, arriving = moves_of(first, sent), moves_of(second)
    first.add_request(request)
    tokens_of(first, 3)
    leaving.leave("a")
    leaving.advance()
    used = second.checkpoint.model.memory.num_used
    for message in sent:
        assert isinstance(message, KVChunk)
        arriving.receive(message)
    arriving.advance()
    assert second.checkpoint.model.memory.num_used > used
    arriving.drop("a")
    assert second.checkpoint.model.memory.num_used == used
    first.abort("a")
    leaving.advance()
    assert not any(isinstance(message, HandedOver) for message in sent), "it has ended where it was"


def test_keys_and_values_of_another_layout_are_not_used(engines: tuple[Engine, Engine]) -> None:
    _, second = engines
    arriving = moves_of(second)
    request = request_for(second, Autoregressive(), "a")
    arriving.receive(KVChunk(1, "a", 0, 1, b"something else"))
    second.add_request(request, [5, 6])
    arriving.arrive("a")
    (state,) = second.scheduler
    assert state.num_computed == 0
    second.abort("a")
