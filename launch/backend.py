"""The backend that answers the requests of a server: an engine in this process, or ranks under a supervisor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from lp.engine.engine import Engine
from lp.engine.input import RequestBuilder
from lp.request import Output
from lp.step_cost import StepTimes
from parallel.comm.channel import Channel
from parallel.groups.messages import Inbox
from parallel.groups.worker import run_engine


class State(StrEnum):
    """The state of a rank.

    starting: its process runs. loading: it has connected. ready: it has loaded the model and could serve. serving: it
    takes part in the current epoch. silent: it does not answer and is left out. down: it has ended and will be started
    again. failed: it has been given up.
    """

    starting = "starting"
    loading = "loading"
    ready = "ready"
    serving = "serving"
    silent = "silent"
    down = "down"
    failed = "failed"


class BackendFailed(RuntimeError):
    """The backend can no longer serve; the message is for the user.

    exit_code: the exit code of the program; 2 for an error that the user can fix.
    """

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


class Backend(Protocol):
    """Answers requests.

    request_builder: builds the requests that this backend answers.
    """

    request_builder: RequestBuilder

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered now; False while they have to wait until ranks have started."""
        ...

    @property
    def num_losses(self) -> int:
        """The number of ranks lost so far."""
        ...

    def status(self) -> dict[str, Any]:
        """Returns {"epoch": number or None, "divided", "ranks": [{rank, host, pid, device, state, last_sign_s}]}.

        divided: whether each rank serves requests of its own, instead of sharing steps with the others. last_sign_s:
        seconds since the rank was last heard of. What is not known of a rank is None.
        """
        ...

    @property
    def step_times(self) -> StepTimes | None:
        """What steps take by their rows, as the ranks have measured it; None if it is not known."""
        ...

    @property
    def outlives_ranks(self) -> bool:
        """Whether texts go on without a rank that has ended, and whether the rank is started again."""
        ...

    def kill(self, rank: int) -> str | None:
        """Ends a rank's process at once, by SIGKILL. Returns why that cannot be done now; None if it was done.

        Only for a backend that outlives its ranks.
        """
        ...

    def run(self, inbox: Inbox, emit: Callable[[Output], None], fail: Callable[[str], None]) -> None:
        """Serves until the inbox hands out a shutdown.

        emit: called with what a step has added to a request. fail: called with the reason when all running requests are
        lost; later requests may still be answered. Raises BackendFailed.
        """
        ...


class EngineBackend:
    """Answers requests with the engine of this process. Other ranks of a mesh run `parallel.groups.worker.run_engine`.

    If one rank is lost, all end.
    """

    is_serving = True
    num_losses = 0
    outlives_ranks = False

    def __init__(self, engine: Engine, channel: Channel):
        self.request_builder = engine.request_builder
        self._engine = engine
        self._channel = channel

    def status(self) -> dict[str, Any]:
        device = str(self._engine.checkpoint.model.device)
        own = {"host": socket.gethostname(), "pid": os.getpid(), "device": device, "last_sign_s": 0.0}
        others = dict.fromkeys(own)
        ranks = [
            {"rank": rank, **(others if rank else own), "state": State.serving}
            for rank in range(self._channel.num_ranks)
        ]
        return {"epoch": None, "divided": False, "ranks": ranks}

    @property
    def step_times(self) -> StepTimes | None:
        return self._engine.history.step_times

    def kill(self, rank: int) -> str | None:
        raise AssertionError("without this rank, all would end")

    def run(self, inbox: Inbox, emit: Callable[[Output], None], fail: Callable[[str], None]) -> None:
        run_engine(self._engine, self._channel, inbox, emit)
