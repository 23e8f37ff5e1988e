"""Links between a front end and its ranks: order, ends, strangers, and a side that does not read."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from parallel.groups.link import Link, LinkClosed, Listener

KEY = b"a key that both know"
LIMIT_S = 60.0


@pytest.fixture
def arrived() -> queue.Queue[Link]:
    return queue.Queue()


@pytest.fixture
def listener(arrived: queue.Queue[Link]) -> Iterator[Listener]:
    with closing(Listener("127.0.0.1", KEY, arrived.put)) as listener:
        yield listener


@pytest.fixture
def ends(listener: Listener, arrived: queue.Queue[Link]) -> Iterator[tuple[Link, Link]]:
    with closing(Link.connect(listener.address, KEY)) as rank, closing(arrived.get(timeout=LIMIT_S)) as front_end:
        yield rank, front_end


def test_messages_arrive_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    rank, front_end = ends
    large = bytes(range(256)) * 4_000
    for number in range(50):
        rank.send(b"%d" % number)
    rank.send(large)
    front_end.send(b"back")
    assert [int(front_end.receive()) for _ in range(50)] == list(range(50))
    assert front_end.receive() == large and rank.receive() == b"back"


def test_what_was_sent_before_closing_arrives_and_then_the_end(ends: tuple[Link, Link]) -> None:
    rank, front_end = ends
    rank.send(b"words" * 100_000)
    rank.close()
    assert len(front_end.receive()) == 500_000
    with pytest.raises(LinkClosed):
        front_end.receive()
    front_end.send(b"nobody hears this")


def test_cutting_ends_both_sides_at_once(ends: tuple[Link, Link]) -> None:
    ends[1].cut()
    for end in ends:
        with pytest.raises(LinkClosed):
            end.receive()


def test_sending_does_not_wait_for_a_side_that_does_not_read(ends: tuple[Link, Link]) -> None:
    def send_all() -> None:
        for _ in range(50):
            ends[0].send(b"x" * 1_000_000)

    sending = threading.Thread(target=send_all, daemon=True)
    sending.start()
    sending.join(LIMIT_S)
    assert not sending.is_alive()


def test_a_side_that_does_not_know_the_key_is_not_let_in(listener: Listener, arrived: queue.Queue[Link]) -> None:
    with pytest.raises(ConnectionError, match=r"the front end at 127\.0\.0\.1:\d+ cannot be reached"):
        Link.connect(listener.address, b"another key")
    assert arrived.empty()


def test_a_stranger_who_says_nothing_holds_up_nobody(listener: Listener, arrived: queue.Queue[Link]) -> None:
    with socket.create_connection(listener.address), closing(Link.connect(listener.address, KEY)):
        arrived.get(timeout=LIMIT_S).close()


def test_nobody_is_let_in_after_closing(listener: Listener) -> None:
    listener.close()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        Link.connect(listener.address, KEY)
