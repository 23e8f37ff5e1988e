"""The tasks that a front end can run (serve HTTP, or continue prompts), and the group of ranks that each opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from launch.cluster.demand import resolve_demand
from launch.cluster.launcher import RayLauncher
from launch.cluster.nodes import Reservation, check_nodes, read_resources
from launch.cluster.program_settings import RayGenerateSettings, RayRuntimeSettings, RayServeSettings
from launch.config.engine_settings import from_json_values, mode_of, num_ranks
from launch.data.output import Printer
from launch.data.prompt_queue import PromptQueue
from launch.data.prompts import NamedPrompt
from launch.generate import Continuations, shared_by_requests
from launch.server.run import Server, bind
from launch.supervisor.supervisor import Supervisor
from lp.request import Completion, Output

# A JSON object that a task gives to its driver, see front_end.py.
Event = dict[str, Any]


class Task(Protocol):
    """The work of a front end. `interrupt` may be called from any thread."""

    def run(self, show: Callable[[Event], None]) -> int:
        """Does the work and returns the exit code. Raises ValueError for what the user can correct."""
        ...

    def interrupt(self, number: int) -> bool:
        """Tells the work to end because of a signal. False if it has not begun and can simply be dropped."""
        ...


def make_task(kind: str, spec: dict[str, Any]) -> Task:
    """kind: serve or generate. spec: {"settings": ...}, and for generate "prompts": lists of a NamedPrompt's fields."""
    if kind == "serve":
        return ServeTask(from_json_values(spec["settings"], RayServeSettings))
    named = [NamedPrompt(*prompt) for prompt in spec["prompts"]]
    return GenerateTask(from_json_values(spec["settings"], RayGenerateSettings), named)


def open_group(settings: RayRuntimeSettings) -> Supervisor:
    """Waits for the resources, checks the nodes, and returns the Supervisor that will start the ranks.

    Raises ValueError with one message for the user, and then leaves nothing reserved.
    """
    wanted, ranks = settings.ray, num_ranks(settings.parallel)
    available = read_resources().nodes
    demand = resolve_demand(ranks, wanted.cpus_per_rank, wanted.placement, settings.model.device, available)
    reservation = Reservation(demand)
    try:
        reservation.wait(wanted.ready_s)
        check_nodes(reservation, settings.model.path, wanted.ready_s)
        return Supervisor(settings, settings.supervisor, RayLauncher(reservation))
    except BaseException:
        reservation.release()
        raise


class ServeTask:
    """Serves HTTP until a signal comes. Requests then have `server.drain_s` to end; a second signal ends them now."""

    def __init__(self, settings: RayServeSettings):
        self._settings = settings
        self._server: Server | None = None
        self._signals: list[int] = []

    def run(self, show: Callable[[Event], None]) -> int:
        listener = bind(self._settings.server)  # first of all, so that nothing is reserved if the port is busy
        try:
            backend = open_group(self._settings)
        except BaseException:
            listener.close()
            raise
        self._server = Server(backend, self._settings.server, listener)
        code = self._server.run()
        return 128 + self._signals[1] if len(self._signals) > 1 else code

    def interrupt(self, number: int) -> bool:
        if not self._server:
            return False
        self._signals.append(number)
        self._server.stop(within_s=0 if len(self._signals) > 1 else None)
        return True


class GenerateTask:
    """One prompt after another. A prompt whose ranks are all lost is left out; the rest follow if they come back."""

    def __init__(self, settings: RayGenerateSettings, named: list[NamedPrompt]):
        self._settings = settings
        self._named = named
        self._queue: PromptQueue | None = None

    def run(self, show: Callable[[Event], None]) -> int:
        parallel = self._settings.parallel
        ranks = num_ranks(parallel)
        given = shared_by_requests(self._settings)
        backend = open_group(self._settings)
        with Printer(Relay(show)) as printer:
            where = {"parallel": mode_of(parallel, ranks), "ranks": ranks}
            texts = Continuations(backend.request_builder, where, self._named, given, printer)
            self._queue = texts.queue
            backend.run(texts.queue, texts.emit, texts.lose)
        return texts.conclude()

    def interrupt(self, number: int) -> bool:
        if not self._queue:
            return False
        self._queue.interrupt(number)
        return True


class Relay:
    """An Output that passes everything on to the driver, which shows it."""

    def __init__(self, show: Callable[[Event], None]):
        self._show = show

    def begin(self, prompt: str) -> None:
        self._show({"begin": prompt})

    def show(self, output: Output) -> None:
        self._show({"output": output.to_dict()})

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._show({"end": record})
