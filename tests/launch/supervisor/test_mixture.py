"""A mixture of requests whose ranks divide, come together and are killed: each yields what it yields alone."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from launch.backend import State
from launch.config.runtime import RuntimeSettings
from launch.supervisor.launcher import LocalLauncher
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from lp import Auto, Engine, Output
from lp.model.checkpoint import ModelSettings
from lp.runner.step_times.measure import StepTimesSource
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown
from parallel.mesh import ParallelSettings
from tests.mixture import Mixture, check_mixture, make_mixture
from tests.slow import exhaustive_except

NUM_REQUESTS, NUM_RANKS, WITHIN_S = 32, 3, 600.0
LARGEST_BURST, LEAST_KILLS = 14, 2


class Client:
    """An Inbox that hands out a mixture in bursts with calm between them, and the shutdown once all have ended.

    Each burst waits until most of the requests before it have ended, and the last one for enough killed ranks.
    """

    def __init__(self, mixture: Mixture, seed: int):
        self.mixture = mixture
        self.num_kills = 0
        self._draw = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting = list(mixture.requests)
        self._cancelled = set(mixture.cancelled)
        self._running: set[str] = set()
        self.failure = ""

    def emit(self, output: Output) -> None:
        with self._changed:
            self.mixture.take(output)
            if output.finish_reason:
                self._running.discard(output.request_id)
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        with self._changed:
            self.failure = reason
            self._changed.notify_all()

    def has_waiting(self) -> bool:
        return bool(self.failure or self._cancelled & self._running or self._is_calm())

    def take(self, wait_s: float) -> list[Command]:
        with self._changed:
            if not self._changed.wait_for(self.has_waiting, wait_s):
                return []
            if self.failure or not (self._waiting or self._running):
                return [Shutdown()]
            # A request may be cancelled before it has yielded anything.
            due: list[Command] = [Abort(name) for name in sorted(self._cancelled & self._running)]
            self._cancelled -= self._running
            if self._is_calm():
                size = min(len(self._waiting), self._draw.choice([1, 9, LARGEST_BURST]))
                burst = [self._waiting.pop(0) for _ in range(size)]
                self._running.update(request.id for request in burst)
                due += map(AddRequest, burst)
            return due

    def note_kill(self) -> None:
        with self._changed:
            self.num_kills += 1
            self._changed.notify_all()

    def _is_calm(self) -> bool:
        """Whether the next burst begins, or the shutdown if none is left."""
        if not self._waiting:
            return not self._running
        return len(self._running) <= 2 and (len(self._waiting) > LARGEST_BURST or self.num_kills >= LEAST_KILLS)


def find_serving(supervisor: Supervisor) -> list[int]:
    """Returns the ranks that take part in the epoch. A rank that was killed is among them until that is noticed."""
    return [rank["rank"] for rank in supervisor.status()["ranks"] if rank["state"] == State.serving.value]


@pytest.mark.parametrize("seed", exhaustive_except([1, 2], 1))
def test_each_request_yields_what_it_yields_alone(model: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lookahead")
    alone = Engine.from_pretrained(str(model), device="cpu", step_times="off")
    mixture = make_mixture(alone, NUM_REQUESTS, seed, most_tokens=120)
    settings = RuntimeSettings(ModelSettings(str(model)), Auto(), parallel=ParallelSettings(ranks=NUM_RANKS))
    settings.step_times = StepTimesSource.off
    launcher = LocalLauncher()
    supervisor = Supervisor(settings, SupervisorSettings(), launcher)
    client = Client(mixture, seed)
    running = threading.Thread(target=supervisor.run, args=(client, client.emit, client.fail), daemon=True)
    running.start()
    draw = random.Random(seed)
    while running.is_alive() and client.num_kills < 4:
        running.join(draw.uniform(0.2, 1.5))
        serving = find_serving(supervisor)
        if len(serving) > 1 and len(mixture.tokens) > 3 + 5 * client.num_kills:
            lost = draw.choice(serving)
            launcher.kill(lost)
            client.note_kill()
            while lost in find_serving(supervisor) and running.is_alive():
                time.sleep(0.01)
    running.join(WITHIN_S)
    assert not running.is_alive() and not client.failure, client.failure
    check_mixture(mixture, alone)
    divided = caplog.text.count("each with requests of its own")
    assert client.num_kills >= LEAST_KILLS and divided >= 1 and supervisor.num_losses >= 1, (client.num_kills, divided)
