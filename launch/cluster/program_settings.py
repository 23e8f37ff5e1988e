"""The programs of launch/ray_job.py that have a front end: what they are told, and what the driver does for them."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass, field
from typing import Any

from launch.cluster import connect, nodes
from launch.cluster.front_end import Event, Signals, drive
from launch.cluster.group import RayRuntimeSettings
from launch.generate import GenerateSettings, output_of
from launch.output.printer import Printer
from launch.program import configuration
from launch.program.settings_json import to_json_values
from launch.prompts import collect
from launch.server.settings import ServerSettings
from launch.supervisor.settings import SupervisorSettings
from lp.request import Completion, Progress


@dataclass
class RayServeSettings(RayRuntimeSettings):
    """server: see launch.server.settings."""

    server: ServerSettings = field(default_factory=ServerSettings)


@dataclass
class RayGenerateSettings(GenerateSettings, RayRuntimeSettings):
    """As launch/generate.py has them."""


def register() -> None:
    """Makes the settings of both known to Hydra."""
    configuration.register("ray_serve", RayServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    configuration.register("ray_generate", RayGenerateSettings, supervisor=SupervisorSettings)


def serve(settings: RayServeSettings) -> int:
    """Exit code 0 after SIGTERM or SIGINT, once running requests have ended. Raises ValueError."""
    settings.server.check()
    resolve(settings)
    connect.join(settings.ray.address)
    if settings.ray.uses_ray_serve:
        from launch.cluster.ray_serve import run  # not before: it loads Ray Serve

        return run(settings, Signals())
    order = {"settings": to_json_values(settings, RayServeSettings)}
    return drive("serve", order, _nothing, Signals().next)


def generate(settings: RayGenerateSettings) -> int:
    """Exit code as launch/generate.py's. Raises ValueError, and OSError if the output cannot be written."""
    named = collect.collect(settings.prompt, settings.prompt_file, settings.prompts)
    resolve(settings)
    connect.join(settings.ray.address)
    order = {
        "settings": to_json_values(settings, RayGenerateSettings),
        "prompts": [dataclasses.astuple(prompt) for prompt in named],
    }
    signals = Signals()
    with Printer(output_of(settings, len(named))) as printer:
        show = Shown(printer, signals)
        code = drive("generate", order, show, signals.next)
    if isinstance(printer.error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    if printer.error:
        raise printer.error
    return code


def resolve(settings: RayRuntimeSettings) -> None:
    """Checks what can be without a cluster, and calls the checkpoint by a name that is good on every node.

    Raises ValueError.
    """
    settings.ray.check()
    settings.supervisor.check()
    settings.model.path = nodes.absolute(settings.model.path)


def _nothing(event: Event) -> None:
    """A server shows nothing but its log."""


class Shown:
    """Puts a front end's events on the driver's output. If that cannot be written, the work is to end."""

    def __init__(self, printer: Printer, signals: Signals):
        self._printer = printer
        self._signals = signals
        self._completion = Completion()
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        match event:
            case {"begin": str(prompt)}:
                self._completion = Completion()
                self._printer.begin(prompt)
            case {"progress": dict(values)}:
                progress = Progress.from_dict(values)
                self._completion.extend(progress)
                self._printer.progress(progress)
            case {"end": dict(record)}:
                self._end(record)
        if self._printer.error and not self._has_failed:
            self._has_failed = True
            self._signals.add(signal.SIGPIPE)

    def _end(self, record: dict[str, Any]) -> None:
        self._printer.end(self._completion, record)
