"""Commands as lines: read back as they were, written once, and not at all for a single rank."""

from __future__ import annotations

import pytest

from lp import Autoregressive, Engine, Lookahead, Output, Sampling, Stopping
from lp.methods.auto.method import Auto
from lp.request import Request
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.messages import (
    Abort,
    AddRequest,
    Command,
    Regroup,
    ResetPrefixes,
    Shutdown,
    decode_commands,
    encode_commands,
)
from parallel.groups.worker import run_engine

NUM_TOKENS = 4


def request(name: str = "a") -> Request:
    sampling = Sampling(temperature=0.0, logit_bias={3: -1.5}, seed=5)
    stopping = Stopping(NUM_TOKENS, ["\n", "ü\ud800"], ignore_eos=True)
    return Request(name, [5, 9, 5], Lookahead(3, 3, 3), sampling, stopping, owner="somebody")


COMMANDS: list[Command] = [
    AddRequest(request()),
    AddRequest(Request("b", [], Auto(), Sampling(), Stopping())),
    Abort("a\nb"),
    Regroup(),
    ResetPrefixes(),
    Shutdown(),
]


@pytest.mark.parametrize("number", range(len(COMMANDS) + 1))
def test_commands_are_read_back_as_they_were(number: int) -> None:
    data = encode_commands(COMMANDS[:number])
    assert decode_commands(data) == COMMANDS[:number]
    assert len(data.splitlines()) == number


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"null", b'{"abort": 3}', b'{"shutdown": false}', b'{"other": 1}'])
def test_what_is_no_command_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_commands(b'{"shutdown": true}\n' + line)


class Once:
    """An inbox that hands out all its commands at the first question."""

    def __init__(self, commands: list[Command]):
        self.commands = commands

    def take(self, wait_s: float) -> list[Command]:
        taken, self.commands = self.commands, []
        return taken or [Shutdown()]

    def has_waiting(self) -> bool:
        return bool(self.commands)


class Recorded(LocalExchange):
    """The exchange of a leader, which remembers what goes to the other ranks."""

    def __init__(self, num_ranks: int):
        super().__init__()
        self.num_ranks = num_ranks
        self.sent: list[bytes] = []

    def broadcast(self, data: bytes | None) -> bytes:
        self.sent.append(data or b"")
        return super().broadcast(data)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the requests that are encoded, once for each time."""
    ids: list[str] = []
    to_dict = Request.to_dict

    def counted(request: Request) -> dict:
        ids.append(request.id)
        return to_dict(request)

    monkeypatch.setattr(Request, "to_dict", counted)
    return ids


def serve(engine: Engine, exchange: Recorded, commands: list[Command]) -> list[Output]:
    emitted: list[Output] = []
    run_engine(engine, Channel(exchange), Once(commands), emitted.append)
    return emitted


def test_a_single_rank_encodes_nothing(llama: Engine, encoded: list[str]) -> None:
    exchange = Recorded(num_ranks=1)
    emitted = serve(llama, exchange, [AddRequest(request())])
    assert sum(len(output.tokens) for output in emitted) == NUM_TOKENS
    assert encoded == [] and exchange.sent == []


def test_several_ranks_encode_a_request_once(llama: Engine, encoded: list[str]) -> None:
    exchange = Recorded(num_ranks=2)
    serve(llama, exchange, [AddRequest(request()), Shutdown()])
    assert encoded == ["a"]
    assert decode_commands(exchange.sent[0]) == [AddRequest(request()), Shutdown()]
    llama.abort("a")


def test_a_leader_passes_on_the_commands_that_it_was_sent(llama: Engine) -> None:
    commands = decode_commands(encode_commands([AddRequest(request())]) + b'\n{"shutdown" :  true}')
    exchange = Recorded(num_ranks=2)
    serve(llama, exchange, commands)
    assert [decode_commands(data) for data in exchange.sent] == [commands]
    llama.abort("a")


def test_a_request_handed_over_by_reference_is_not_changed(llama: Engine) -> None:
    handed = Request("a", [5, 9], Autoregressive(), Sampling(temperature=0.0, seed=1), Stopping(NUM_TOKENS))
    before = decode_commands(encode_commands([AddRequest(handed)]))
    serve(llama, Recorded(num_ranks=1), [AddRequest(handed)])
    assert before == [AddRequest(handed)]
