"""The supervisor and a pretended rank on a real link: what each says, and that a request is encoded once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.program.runtime import RuntimeSettings
from launch.prompts.queue import PromptQueue
from launch.supervisor.launcher import OnExit
from launch.supervisor.rank_spec import RankSpec
from launch.supervisor.settings import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from lp import Autoregressive, Progress
from lp.model.checkpoint import ModelSettings
from lp.request import Request
from lp.statistics import Statistics
from parallel.group import messages
from parallel.group.commands import Shutdown, Submit
from parallel.group.epoch import Epoch, RunningRequest
from parallel.group.link import Link, LinkClosed
from parallel.group.messages import BeginEpoch, Commands, FrontEndMessage, Hello, Joined, Progressed, RankMessage, Ready
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


def settings(model: Path) -> RuntimeSettings:
    return RuntimeSettings(ModelSettings(str(model)), Autoregressive(), parallel=ParallelSettings(ranks=1))


@contextmanager
def running(supervisor: Supervisor, prompts: PromptQueue, emitted: list[Progress]) -> Iterator[None]:
    def emit(progress: Progress) -> None:
        emitted.append(progress)
        prompts.emit(progress)

    thread = threading.Thread(target=supervisor.run, args=(prompts, emit, lambda reason: None), daemon=True)
    thread.start()
    yield
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def say(link: Link, message: RankMessage) -> None:
    link.send(messages.encode(message))


def hear(link: Link) -> FrontEndMessage:
    return messages.from_front_end(link.receive())


def end_of(request_id: str) -> Progress:
    return Progress(request_id, [7], "x", None, "length", Statistics())


def test_a_request_goes_to_the_leader_and_its_progress_comes_back(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoded: list[str] = []
    to_dict = Request.to_dict
    monkeypatch.setattr(Request, "to_dict", lambda request: (encoded.append(request.id), to_dict(request))[1])
    launcher = Pretended()
    supervisor = Supervisor(settings(model), SupervisorSettings(answer_within_s=WITHIN_S), launcher)
    first, second = (supervisor.request_builder.build([5, 6], request_id=name) for name in "ab")
    prompts, emitted = PromptQueue([first, second]), list[Progress]()
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
        say(link, Joined(1))
        link.send(b'{"type": "Goodbye"}')
        say(link, Progressed(1, [end_of("a")]))
        assert hear(link) == Commands(1, [Submit(second)])
        place = {"rank": 0, "host": "here", "pid": 17, "device": "cpu", "state": "serving"}
        assert place.items() <= supervisor.status()["ranks"][0].items()
        say(link, Progressed(1, [end_of("b")]))
        assert hear(link) == Commands(1, [Shutdown()])
        link.close()
        on_exit(0, "it ended with exit code 0")
    assert [(progress.request_id, progress.tokens) for progress in emitted] == [("a", [7]), ("b", [7])]
    assert "rank 0 sent something that is not a message" in caplog.text
    assert encoded == ["a", "b"]
