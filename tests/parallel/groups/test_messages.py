"""Messages of a front end and its ranks: read back as they were, and refused if they are none."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from lp import Autoregressive, Output, Sampling, Stopping
from lp.request import Request, TokenLogprob
from lp.statistics import Statistics
from lp.step_cost import StepTimes
from parallel.errors import EpochOver
from parallel.groups import messages
from parallel.groups.epoch import Epoch, RunningRequest
from parallel.groups.link import Link, Listener
from parallel.groups.messages import (
    Abort,
    AddRequest,
    Alive,
    BeginEpoch,
    Commands,
    Failed,
    FrontEndMessage,
    Hello,
    Joined,
    Leave,
    Left,
    Lost,
    Measured,
    Outputs,
    RankMessage,
    Ready,
    Shutdown,
)
from parallel.groups.worker import Fenced, Worker

REQUEST = Request("a", [5, 9], Autoregressive(), Sampling(seed=1, logit_bias={3: 1.0}), Stopping(8, ["ü\n"]))
OUTPUT = Output("a", [7], "ü", [TokenLogprob(7, -0.5, [(7, -0.5)])], None, Statistics(submitted_at=0.0))

FROM_RANK: list[RankMessage] = [
    Hello(3, "host", 17),
    Ready("cpu"),
    Alive(),
    Joined(2, 64),
    Left(2, {"a": 17}),
    Measured({"2": StepTimes.flat().to_dict(), "1": StepTimes((1, 2), (1.0, 2.0)).to_dict()}),
    Lost(2, "rank 1 is lost"),
    Failed("no memory\nat all", is_final=True),
]
FROM_FRONT_END: list[FrontEndMessage] = [
    BeginEpoch(Epoch(4, [1, 0], urgent=False, running=[RunningRequest(REQUEST, [7, 8])])),
    BeginEpoch(Epoch(1, [0], is_first=True)),
    Commands(4, [AddRequest(REQUEST), Abort("b"), Shutdown()]),
    Commands(4, []),
    Leave("the group is shut down"),
]


@pytest.mark.parametrize("message", FROM_RANK, ids=repr)
def test_what_a_rank_says_is_read_back(message: RankMessage) -> None:
    assert messages.from_rank(messages.encode(message)) == message


def test_progress_is_read_back() -> None:
    read = messages.from_rank(messages.encode(Outputs(2, [OUTPUT, OUTPUT])))
    assert isinstance(read, Outputs) and read.epoch == 2
    assert [one.to_dict() for one in read.outputs] == [OUTPUT.to_dict()] * 2


@pytest.mark.parametrize("message", FROM_FRONT_END, ids=range(len(FROM_FRONT_END)))
def test_what_a_front_end_says_is_read_back(message: FrontEndMessage) -> None:
    assert messages.from_front_end(messages.encode(message)) == message


BAD = {
    "no JSON": b"hello",
    "no object": b"[]",
    "no type": b'{"rank": 1}',
    "unknown type": b'{"type": "Goodbye"}',
    "type of the wrong kind": b'{"type": ["Hello"]}',
    "missing value": b'{"type": "Ready"}',
    "unknown value": b'{"type": "Alive", "rank": 1}',
    "value of the wrong type": b'{"type": "Joined", "epoch": "1"}',
    "outputs that are none": b'{"type": "Outputs", "epoch": 1, "outputs": [{"tokens": 3}]}',
    "outputs that are no list": b'{"type": "Outputs", "epoch": 1, "outputs": 3}',
    "a front end's message": b'{"type": "Leave", "reason": "x"}',
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.from_rank(BAD[name])


@pytest.mark.parametrize(
    "data",
    [
        b'{"type": "BeginEpoch", "epoch": {"number": 1}}',
        b'{"type": "BeginEpoch", "epoch": {"number": 1, "members": [0], "running": [{"request": {}}]}}',
        b'{"type": "Commands", "epoch": 1}\n{"add_request": {"id": "a"}}',
        b'{"type": "Commands", "epoch": 1}\n\n',
        b'{"type": "Hello", "rank": 0, "host": "x", "pid": 1}',
    ],
)
def test_what_no_front_end_says_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.from_front_end(data)


@pytest.fixture
def front_end() -> Iterator[Callable[[], tuple[Worker, Link]]]:
    """Makes rank 1 and a pretended front end's link to it."""
    arrived: queue.Queue[Link] = queue.Queue()
    links: list[Link] = []

    def connect() -> tuple[Worker, Link]:
        links.append(Link.connect(listener.address, b"key"))
        links.append(arrived.get(timeout=60))
        return Worker(links[0], 1), links[1]

    with closing(Listener("127.0.0.1", b"key", arrived.put)) as listener:
        yield connect
    for link in links:
        link.cut()


def test_a_member_introduces_itself_and_takes_what_it_is_told(
    front_end: Callable[[], tuple[Worker, Link]], caplog: pytest.LogCaptureFixture
) -> None:
    member, link = front_end()
    hello = messages.from_rank(link.receive())
    assert isinstance(hello, Hello) and hello.rank == 1
    link.send(b"nonsense")
    for message in (BeginEpoch(Epoch(5, [1])), Commands(4, [Abort("old")]), Commands(5, [Abort("a")])):
        link.send(messages.encode(message))
    assert member.next_epoch() == Epoch(5, [1])
    assert member.take(5.0) == [Abort("a")]
    assert "the front end sent something that is not a message: b'nonsense'" in caplog.text
    link.send(messages.encode(Leave("enough")))
    with pytest.raises(EpochOver):
        member.take(5.0)
    with pytest.raises(Fenced, match="enough"):
        member.next_epoch()
