"""The supervisor and a pretended rank on a real link: what each says, and that a request is encoded once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.config.runtime import RuntimeSettings
from launch.data.prompt_queue import PromptQueue
from launch.supervisor.launcher import OnExit, RankSpec
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from lp import Autoregressive, Output
from lp.model.checkpoint import ModelSettings
from lp.request import Request
from lp.statistics import Statistics
from parallel.groups import messages
from parallel.groups.epoch import Epoch, RunningRequest
from parallel.groups.link import Link, LinkClosed
from parallel.groups.messages import (
    AddRequest,
    BeginEpoch,
    Commands,
    FrontEndMessage,
    Hello,
    Joined,
    Leave,
    Outputs,
    RankMessage,
    Ready,
    Shutdown,
)
from parallel.mesh import ParallelSettings

WITHIN_S = 120.0


class Pretended:
    """A Launcher whose single rank is the test. orders: what the supervisor asked to start."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.orders: queue.Queue[tuple[RankSpec, bytes, OnExit]] = queue.Queue()

    def start(self, spec: RankSpec, key: bytes, on_exit: OnExit) -> None:
        self.orders.put((spec, key, on_exit))

    def kill(self, rank: int) -> None:
        pass

    def place(self, rank: int, num_ranks: int) -> tuple[int, int]:
        return rank, num_ranks

    def close(self) -> None:
        pass


def settings(model: Path, ranks: int = 1) -> RuntimeSettings:
    return RuntimeSettings(ModelSettings(str(model)), Autoregressive(), parallel=ParallelSettings(ranks=ranks))


@contextmanager
def running(supervisor: Supervisor, prompts: PromptQueue, emitted: list[Output]) -> Iterator[None]:
    def emit(output: Output) -> None:
        emitted.append(output)
        prompts.emit(output)

    thread = threading.Thread(target=supervisor.run, args=(prompts, emit, lambda reason: None), daemon=True)
    thread.start()
    yield
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def say(link: Link, message: RankMessage) -> None:
    link.send(messages.encode(message))


def hear(link: Link) -> FrontEndMessage:
    return messages.from_front_end(link.receive())


def end_of(request_id: str) -> Output:
    return Output(request_id, [7], "x", None, "length", Statistics())


def test_a_request_goes_to_the_leader_and_its_progress_comes_back(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoded: list[str] = []
    to_dict = Request.to_dict
    monkeypatch.setattr(Request, "to_dict", lambda request: (encoded.append(request.id), to_dict(request))[1])
    launcher = Pretended()
    supervisor = Supervisor(settings(model), SupervisorSettings(answer_timeout_s=WITHIN_S), launcher)
    first, second = (supervisor.request_builder.build([5, 6], request_id=name) for name in "ab")
    prompts, emitted = PromptQueue([first, second]), list[Output]()
    with running(supervisor, prompts, emitted):
        spec, key, on_exit = launcher.orders.get(timeout=WITHIN_S)
        for stranger in (b"nonsense", messages.encode(Ready("cpu")), messages.encode(Hello(7, "here", 1))):
            link = Link.connect(spec.front_end, key)
            link.send(stranger)
            with pytest.raises(LinkClosed):
                link.receive()
        assert caplog.text.count("somebody connected who is no rank") == 3
        assert supervisor.status()["ranks"][0]["pid"] is None

        link = Link.connect(spec.front_end, key)
        say(link, Hello(0, "here", 17))
        say(link, Ready("cpu"))
        assert hear(link) == BeginEpoch(Epoch(1, [0], is_first=True, running=[RunningRequest(first, [])]))
        say(link, Joined(1, 64))
        link.send(b'{"type": "Goodbye"}')
        say(link, Outputs(1, [end_of("a")]))
        assert hear(link) == Commands(1, [AddRequest(second)])
        place = {"rank": 0, "host": "here", "pid": 17, "device": "cpu", "state": "serving"}
        assert place.items() <= supervisor.status()["ranks"][0].items()
        assert supervisor.request_builder.budget.num_pages == 64, "which only a rank that has its engine knows"
        say(link, Outputs(1, [end_of("b")]))
        assert hear(link) == Commands(1, [Shutdown()])
        link.close()
        on_exit(0, "it ended with exit code 0")
    assert [(output.request_id, output.tokens) for output in emitted] == [("a", [7]), ("b", [7])]
    assert "rank 0 sent something that is not a message" in caplog.text
    assert encoded == ["a", "b"]


@pytest.mark.parametrize("how", ["starting", "lost"])
def test_the_end_waits_for_no_rank_that_cannot_hear_of_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Rank 1 is being started anew when the group ends, or it is lost while it ends."""
    monkeypatch.setattr("launch.supervisor.supervisor.LEAVE_S", 10 * WITHIN_S)
    launcher = Pretended()
    supervision = SupervisorSettings(answer_timeout_s=WITHIN_S, hang_timeout_s=WITHIN_S)
    supervisor = Supervisor(settings(model, ranks=2), supervision, launcher)
    prompts = PromptQueue([supervisor.request_builder.build([5, 6], request_id="a")])
    with running(supervisor, prompts, []):
        orders = {order[0].rank: order for order in (launcher.orders.get(timeout=WITHIN_S) for _ in range(2))}
        links = {}
        for rank, (spec, key, _) in orders.items():
            links[rank] = Link.connect(spec.front_end, key)
            say(links[rank], Hello(rank, "here", 17 + rank))
            say(links[rank], Ready("cpu"))
        begun = hear(links[0])
        assert isinstance(begun, BeginEpoch) and begun.epoch.number == 1
        for link in links.values():
            say(link, Joined(1, 64))
        last = 1
        if how == "starting":
            links[1].close()
            orders[1][2](1, "it was ended by SIGKILL")
            begun = hear(links[0])
            assert isinstance(begun, BeginEpoch) and begun.epoch.members == [0]
            last = begun.epoch.number
            spec, key, _ = launcher.orders.get(timeout=WITHIN_S)
            links[1] = Link.connect(spec.front_end, key)
            say(links[1], Hello(1, "here", 19))  # and no more: it loads its model
            wait_until(lambda: supervisor.status()["ranks"][1]["state"] == "loading")
            say(links[0], Joined(last, 64))
        leader = begun.epoch.leaders[0]
        if not begun.epoch.running:  # the request came later
            given = hear(links[leader])
            assert isinstance(given, Commands) and isinstance(given.commands[0], AddRequest)
        say(links[leader], Outputs(last, [end_of("a")]))
        assert hear(links[leader]) == Commands(last, [Shutdown()])
        if how == "lost":
            assert isinstance(hear(links[1 - leader]), BeginEpoch)
            links[1 - leader].close()
            orders[1 - leader][2](1 - leader, "it was ended by SIGKILL")
            assert isinstance(hear(links[leader]), Leave)  # it would wait for another epoch
        links[leader].close()
        orders[leader][2](leader, "it ended with exit code 0")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
