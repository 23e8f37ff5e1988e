"""The queue of prompts: order, how many run at a time, and how it ends early."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from launch.data.prompt_queue import PromptQueue
from lp import Autoregressive, Output, Sampling, Stopping
from lp.request import Request
from lp.statistics import Statistics
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown


def request(name: str) -> Request:
    return Request(name, [1, 2], Autoregressive(), Sampling(), Stopping(8))


def queue_of(names: str, concurrency: int = 1, warm_up: str | None = None) -> PromptQueue:
    return PromptQueue(map(request, names), concurrency, request(warm_up) if warm_up else None)


def submitted(commands: list[Command]) -> str:
    """The ids of the requests; fails for any other command."""
    assert all(isinstance(command, AddRequest) for command in commands), commands
    return "".join(command.request.id for command in commands if isinstance(command, AddRequest))


def end(queue: PromptQueue, name: str) -> None:
    queue.emit(Output(name, [3], "c", None, None, Statistics()))
    queue.emit(Output(name, [], "", None, "length", Statistics()))


def test_one_at_a_time_in_order_and_then_the_shutdown() -> None:
    queue = queue_of("abc")
    for name in "abc":
        assert queue.has_waiting() and submitted(queue.take(0)) == name
        assert not queue.has_waiting() and queue.take(0) == []
        end(queue, name)
    assert queue.has_waiting() and queue.take(0) == [Shutdown()]


def test_an_empty_queue_shuts_down_at_once() -> None:
    assert queue_of("").take(0) == [Shutdown()]


def test_so_many_at_a_time() -> None:
    queue = queue_of("abcd", concurrency=2)
    assert submitted(queue.take(0)) == "ab"
    assert not queue.has_waiting()
    end(queue, "b")
    assert queue.has_waiting() and submitted(queue.take(0)) == "c"
    end(queue, "a")
    end(queue, "c")
    assert submitted(queue.take(0)) == "d"
    assert not queue.has_waiting()
    end(queue, "d")
    assert queue.take(0) == [Shutdown()]


def test_the_warm_up_runs_alone() -> None:
    queue = queue_of("abc", concurrency=2, warm_up="w")
    assert submitted(queue.take(0)) == "w"
    assert not queue.has_waiting() and queue.take(0) == []
    end(queue, "w")
    assert submitted(queue.take(0)) == "ab"


def test_it_calls_back_before_a_request_is_handed_out() -> None:
    begun: list[str] = []
    queue = PromptQueue([request("a"), request("b")], on_begin=lambda request: begun.append(request.id))
    assert begun == []
    queue.take(0)
    assert begun == ["a"]


def test_a_signal_cancels_what_runs_once_and_leaves_out_the_rest() -> None:
    queue = queue_of("abcd", concurrency=2)
    queue.take(0)
    end(queue, "a")
    queue.interrupt(signal.SIGTERM)
    assert queue.has_waiting() and queue.take(0) == [Abort("b")]
    assert not queue.has_waiting() and queue.take(0) == []
    end(queue, "b")
    assert queue.has_waiting() and queue.take(0) == [Shutdown()]
    assert queue.interrupted_by == signal.SIGTERM


def test_stopped_between_two_requests_it_shuts_down() -> None:
    queue = queue_of("ab")
    queue.take(0)
    end(queue, "a")
    queue.stop()
    assert queue.take(0) == [Shutdown()] and queue.interrupted_by is None


def test_a_request_whose_ranks_are_lost_makes_room_for_the_next() -> None:
    queue = queue_of("abc", concurrency=2)
    queue.take(0)
    assert [lost.id for lost in queue.lose()] == ["a", "b"]
    assert submitted(queue.take(0)) == "c"
    assert [lost.id for lost in queue.lose()] == ["c"] and queue.lose() == []
    assert queue.take(0) == [Shutdown()]


def test_a_cancelled_request_that_is_lost_as_well_does_not_hold_up_the_end() -> None:
    queue = queue_of("ab")
    queue.take(0)
    queue.interrupt(signal.SIGINT)
    queue.take(0)
    queue.lose()
    assert queue.has_waiting() and queue.take(0) == [Shutdown()]


@pytest.mark.parametrize("event", ["emit", "lose", "interrupt"])
def test_who_waits_in_another_thread_is_woken(event: str) -> None:
    queue = queue_of("ab")
    queue.take(0)
    taken: list[list[Command]] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take(30.0)))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    match event:
        case "emit":
            end(queue, "a")
        case "lose":
            queue.lose()
        case "interrupt":
            queue.interrupt(signal.SIGINT)
    waiting.join(5.0)
    expected = [Abort("a")] if event == "interrupt" else [AddRequest(request("b"))]
    assert not waiting.is_alive() and taken == [expected]


def test_waiting_ends_after_its_time() -> None:
    queue = queue_of("a")
    queue.take(0)
    begin = time.monotonic()
    assert queue.take(0.05) == [] and time.monotonic() - begin >= 0.05


def test_a_signal_may_come_while_the_queue_is_asked() -> None:
    """The handler runs in the thread that holds the lock."""
    queue = PromptQueue([request("a"), request("b")], on_begin=lambda request: queue.interrupt(signal.SIGINT))
    assert submitted(queue.take(0)) == "a"
    assert queue.take(0) == [Abort("a")]
