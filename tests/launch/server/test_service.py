"""The service by itself, with the test as its engine."""

from __future__ import annotations

import asyncio
import threading

import pytest

from launch.server.metrics import Metrics
from launch.server.service import EngineFailed, QueueFull, Service, ShuttingDown
from lp import Autoregressive, Output, Sampling, Stopping
from lp.request import Request
from lp.statistics import Statistics
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown


def service(max_running: int = 1, max_waiting: int = 2) -> Service:
    return Service(max_running, max_waiting, Metrics("model"))


def request(name: str) -> Request:
    return Request(name, [1, 2], Autoregressive(), Sampling(temperature=0.0, seed=0), Stopping(8))


def output_of(name: str, reason: str | None = None) -> Output:
    return Output(name, [3], "c", None, reason, Statistics())  # type: ignore[arg-type]


def submitted(commands: list[Command]) -> list[str]:
    return [command.request.id for command in commands if isinstance(command, AddRequest)]


def test_hands_out_as_many_as_may_run_in_order_of_arrival():
    async def scene():
        front = service(max_running=2)
        for name in "abcd":
            front.submit(request(name))
        with pytest.raises(QueueFull):
            front.submit(request("e"))
        assert front.has_waiting() and submitted(front.take(0)) == ["a", "b"]
        assert not front.has_waiting() and front.take(0) == []
        front.emit(output_of("b", "stop"))
        assert front.has_waiting() and submitted(front.take(0)) == ["c"]
        front.submit(request("e"))
        assert (front.num_running, front.num_waiting) == (2, 2)

    asyncio.run(scene())


def test_what_is_submitted_together_gets_a_turn_in_each_round():
    async def scene():
        front = service(max_running=1, max_waiting=20)
        front.submit(*(request(f"list {number}") for number in range(5)))
        found = submitted(front.take(0))
        for name in "abcd":
            front.submit(request(name))
        while front.num_running:
            front.emit(output_of(found[-1], "stop"))
            found += submitted(front.take(0))
            if len(found) == 4:
                front.submit(request("late"))
        assert found == ["list 0", "list 1", "a", "b", "c", "d", "list 2", "late", "list 3", "list 4"]

    asyncio.run(scene())


def test_no_stream_of_single_requests_starves_a_list():
    async def scene():
        front = service(max_running=1, max_waiting=20)
        front.submit(*(request(f"list {number}") for number in range(3)))
        found = submitted(front.take(0))
        for number in range(12):  # two arrive while one runs, so there are always more of them
            front.submit(request(f"{number} a"))
            if number < 6:
                front.submit(request(f"{number} b"))
            front.emit(output_of(found[-1], "stop"))
            found += submitted(front.take(0))
        assert found.index("list 1") < 3 and found.index("list 2") < 9

    asyncio.run(scene())


def test_many_texts_take_at_most_as_many_places_as_may_run():
    async def scene():
        front = service(max_running=2, max_waiting=3)
        many = front.submit(*(request(f"list {number}") for number in range(9)))  # 2 of 5 places
        assert len(submitted(front.take(0))) == 2  # 2 more of it wait and take 2 places
        with pytest.raises(QueueFull):
            front.submit(request("a"), request("b"))
        front.submit(request("a"))
        for refused in ([request("b")], [request(f"c {number}") for number in range(100)]):
            with pytest.raises(QueueFull):
                front.submit(*refused)
        assert (front.num_running, front.num_waiting) == (2, 8)
        many.close()
        for number in (0, 1):
            front.emit(output_of(f"list {number}", "cancelled"))
        assert submitted(front.take(0)) == ["a"] and front.num_waiting == 0
        for number in range(4):
            front.submit(request(f"d {number}"))
        with pytest.raises(QueueFull):
            front.check_open()

    asyncio.run(scene())


def test_cancelled_requests_leave_nothing_behind():
    async def scene():
        front = service(max_running=1, max_waiting=100)
        front.submit(request("runs"))
        front.take(0)
        for number in range(1000):
            kept = front.submit(request(f"{number} a"), request(f"{number} b"))
            if number % 100:
                kept.close()
        assert front.num_waiting == 20 and len(front._turns) < 100
        found = ["runs"]
        while front.num_running:
            front.emit(output_of(found[-1], "stop"))
            found += submitted(front.take(0))
        assert sorted(found[1:]) == sorted(f"{number} {choice}" for number in range(0, 1000, 100) for choice in "ab")

    asyncio.run(scene())


def test_many_texts_are_taken_where_nothing_may_wait():
    async def scene():
        front = service(max_running=2, max_waiting=0)
        front.submit(*(request(f"list {number}") for number in range(9)))
        with pytest.raises(QueueFull):
            front.check_open()
        found: list[str] = []
        while taken := submitted(front.take(0)):
            found += taken
            for name in taken:
                front.emit(output_of(name, "stop"))
        assert len(found) == 9
        front.check_open()

    asyncio.run(scene())


def test_a_subscription_gives_what_is_emitted_and_ends():
    async def scene():
        front = service()
        subscription = front.submit(request("a"))
        front.take(0)
        front.emit(output_of("a"))
        front.emit(output_of("unknown"))
        front.emit(output_of("a", "length"))
        assert [found.finish_reason async for found in subscription] == [None, "length"]
        assert [found async for found in subscription] == []
        subscription.close()
        assert not front.has_waiting()

    asyncio.run(scene())


def test_cancel():
    async def scene():
        front = service()
        running, waiting = front.submit(request("a")), front.submit(request("b"))
        front.take(0)
        waiting.close()
        assert (front.num_running, front.num_waiting) == (1, 0)
        running.close()
        running.close()
        assert front.take(0) == [Abort("a")] and front.num_running == 1
        front.emit(output_of("a", "cancelled"))
        assert front.num_running == 0
        front.cancel("a")
        assert not front.has_waiting()

    asyncio.run(scene())


class Interrupted(threading.Condition):
    """A condition that calls `other` as soon as its first holder releases it."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def __exit__(self, *error):
        super().__exit__(*error)
        other, self.other = self.other, lambda: None
        other()


def test_a_waiting_request_that_is_cancelled_never_runs():
    """The engine takes its commands at the worst moment."""

    async def scene():
        front = service()
        subscription = front.submit(request("a"))
        taken: list[Command] = []
        front._changed = Interrupted(lambda: taken.extend(front.take(0)))
        subscription.close()
        assert taken == [] and front.take(0) == []
        assert (front.num_running, front.num_waiting) == (0, 0)

    asyncio.run(scene())


def test_a_request_that_has_ended_is_not_cancelled():
    async def scene():
        front = service()
        front.submit(request("a")).close()
        subscription = front.submit(request("b"))
        front.take(0)
        subscription.close()
        front.emit(output_of("b", "stop"))
        assert front.take(0) == []

    asyncio.run(scene())


def test_drain():
    async def scene():
        front = service()
        first, second = front.submit(request("a")), front.submit(request("b"))
        front.take(0)
        front.drain(within_s=60)
        with pytest.raises(ShuttingDown):
            front.submit(request("c"))
        assert front.take(0) == []
        front.emit(output_of("a", "stop"))
        assert submitted(front.take(0)) == ["b"]
        front.emit(output_of("b", "stop"))
        assert front.take(0) == [Shutdown()]
        assert [found.finish_reason async for found in first] == ["stop"] == [f.finish_reason async for f in second]

    asyncio.run(scene())


def test_drain_cancels_what_is_left_at_its_deadline():
    async def scene():
        front = service()
        first, second = front.submit(request("a")), front.submit(request("b"))
        front.take(0)
        front.drain(within_s=0)
        assert front.has_waiting() and front.take(0) == [Abort("a")]
        assert not front.has_waiting() and front.take(0) == []  # once is enough, however long its step takes
        front.emit(output_of("a", "cancelled"))
        assert front.take(0) == [Shutdown()]
        for subscription in (first, second):
            with pytest.raises(ShuttingDown):
                await anext(subscription)

    asyncio.run(scene())


def test_failure_ends_all_requests():
    async def scene():
        front = service()
        subscriptions = [front.submit(request("a")), front.submit(request("b"))]
        front.take(0)
        front.fail()
        for subscription in subscriptions:
            with pytest.raises(EngineFailed):
                await anext(subscription)
        with pytest.raises(EngineFailed):
            front.submit(request("c"))

    asyncio.run(scene())


def test_take_waits_for_what_arrives():
    async def scene():
        front = service()
        taking = asyncio.get_running_loop().run_in_executor(None, front.take, 10.0)
        await asyncio.sleep(0.05)
        assert not taking.done()
        front.submit(request("a"))
        assert submitted(await asyncio.wait_for(taking, 60)) == ["a"]
        assert front.take(0.01) == []

    asyncio.run(scene())


def test_progress_for_a_closed_event_loop_is_dropped():
    front = service()

    async def scene():
        front.submit(request("a"))

    asyncio.run(scene())
    front.take(0)
    front.emit(output_of("a", "stop"))
    assert front.num_running == 0
