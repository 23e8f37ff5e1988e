"""Clients that are slow, silent, too many or too talkative: others do not notice them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from launch.server.connection import LARGEST_HEAD
from tests.launch.server.harness import LIMIT_S, Running, assert_error, eventually, serving
from tests.slow import slow_except

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NO_BODY = HEAD + b"Content-Length: 100\r\n\r\n"
# Such a client may take so long over its head and its body. A request that waited for one would take as long, which is
# far more than the most that a request takes beside others, on a machine with other work as well.
PATIENCE_S, SLOW_S = 600.0, 60.0


@contextlib.contextmanager
def connections(running: Running, number: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        address = running.server._listener.getsockname()
        opened = [stack.enter_context(socket.create_connection(address, timeout=LIMIT_S)) for _ in range(number)]
        for connection in opened:
            connection.sendall(sent)
        yield opened


def slowest_s(running: Running, number: int = 15) -> float:
    """Seconds that the slowest of so many requests takes."""
    taken = []
    for _ in range(number):
        begin = time.perf_counter()
        running.assert_serves()
        taken.append(time.perf_counter() - begin)
    return max(taken)


@pytest.mark.parametrize(
    "sent",
    slow_except([b"", HEAD[:20], NO_BODY, NO_BODY + b"{"], HEAD[:20], NO_BODY + b"{"),
    ids=["idle", "half a head", "no body", "half a body"],
)
def test_nobody_waits_for_two_hundred_such_connections(checkpoint, sent: bytes):
    with (
        serving(checkpoint, head_timeout_s=PATIENCE_S, body_timeout_s=PATIENCE_S) as running,
        connections(running, 200, sent) as held,
    ):
        assert slowest_s(running) < SLOW_S
        for connection in held:  # and none of them was closed to serve others
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_slow_loris(checkpoint):
    """Clients that send a byte of their heads now and then lose their connections; meanwhile others are served."""
    with serving(checkpoint, head_timeout_s=0.5) as running, connections(running, 50, HEAD) as slow:
        deadline, open_ones = time.monotonic() + LIMIT_S, set(slow)
        while open_ones and time.monotonic() < deadline:
            for connection in [*open_ones]:
                try:
                    connection.sendall(b"X")
                except OSError:
                    open_ones.discard(connection)
            running.assert_serves()
        assert not open_ones, f"{len(open_ones)} connections are still open"


def closed(connection: socket.socket, within_s: float = LIMIT_S) -> bytes:
    """What the server sends until it closes the connection."""
    connection.settimeout(within_s)
    return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_silent_connection_is_closed(checkpoint):
    with serving(checkpoint, head_timeout_s=0.3) as running, connections(running, 1) as (connection,):
        assert closed(connection) == b""


def test_half_a_head_is_answered(checkpoint):
    with serving(checkpoint, head_timeout_s=0.3) as running, connections(running, 1, HEAD) as (connection,):
        assert closed(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.slow
def test_a_second_request_may_take_as_long_as_the_first(checkpoint):
    with serving(checkpoint, head_timeout_s=2.5) as running, connections(running, 1) as (connection,):
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while b"ok" not in answer:
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            time.sleep(0.9)
        connection.sendall(request[:10])
        assert closed(connection).startswith(b"HTTP/1.1 408 ")


def test_a_long_answer_may_take_longer_than_a_head(checkpoint):
    with serving(checkpoint, head_timeout_s=0.2) as running:
        running.gate.open_gate.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.post, "/v1/completions", prompt="a", max_tokens=2)
            time.sleep(0.6)
            running.gate.open_gate.set()
            assert answer.result().status_code == 200


def test_a_slow_body_is_refused(checkpoint):
    head = NO_BODY + b"{"
    with serving(checkpoint, body_timeout_s=0.3) as running, connections(running, 1, head) as (connection,):
        answer = closed(connection)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"server.body_timeout_s" in answer
        assert running.metric("lookahead:requests_refused_total", reason="body_too_slow") == 1


def test_a_body_that_drips_after_its_answer_holds_no_connection(checkpoint):
    """The answer comes before the body, which nobody reads, and the connection is closed all the same."""
    head = HEAD.replace(b"/v1/completions", b"/nothing") + b"Content-Length: 100000\r\n\r\n"
    with serving(checkpoint, head_timeout_s=0.4) as running, connections(running, 1, head) as (connection,):
        assert connection.recv(4096).startswith(b"HTTP/1.1 404 ")

        def is_closed() -> bool:
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        eventually(is_closed)


def test_a_head_without_end_is_refused(checkpoint):
    with serving(checkpoint) as running, connections(running, 1, HEAD) as (connection,):
        with contextlib.suppress(OSError):
            for _ in range(2 * LARGEST_HEAD // 1000):
                connection.sendall(b"X-Long: " + b"a" * 990 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert closed(connection).startswith(b"HTTP/1.1 431 ")
        running.assert_serves()


def test_too_many_connections(checkpoint):
    with serving(checkpoint, max_connections=5) as running, connections(running, 5) as held:
        eventually(lambda: len(running.server._http.server_state.connections) == 5)
        answer = httpx.get(f"{running.url}/health")
        assert_error(answer, 503, "too many connections")
        assert answer.headers["retry-after"] == "1"
        held[0].close()
        eventually(lambda: len(running.server._http.server_state.connections) < 5)
        running.assert_serves()


def test_short_texts_do_not_wait_for_long_ones(checkpoint):
    """A text of half a megabyte takes a second or two; many short ones are answered meanwhile."""
    text = "the quick brown fox " * 25_000
    with serving(checkpoint) as running, concurrent.futures.ThreadPoolExecutor(1) as pool:
        long = pool.submit(running.post, "/v1/completions", prompt=text)
        num_overtaking = 0
        while not long.done():
            running.assert_serves()
            num_overtaking += not long.done()
        assert long.result().status_code == 400
        assert num_overtaking > 0
