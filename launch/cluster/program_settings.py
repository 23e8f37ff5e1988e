"""Settings of the programs that run on a Ray cluster: of any group, and of task=serve and task=generate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launch.cluster.nodes import absolute_name
from launch.cluster.settings import RaySettings
from launch.config import engine_settings
from launch.config.runtime import RuntimeSettings
from launch.generate import GenerateSettings
from launch.server.settings import ServerSettings
from launch.supervisor.membership import SupervisorSettings


@dataclass
class RayRuntimeSettings(RuntimeSettings):
    """Settings of a group on a cluster. ray: where its ranks run. supervisor: see SupervisorSettings."""

    ray: RaySettings = field(default_factory=RaySettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


@dataclass
class RayServeSettings(RayRuntimeSettings):
    """Settings of task=serve. server: see launch.server.settings."""

    server: ServerSettings = field(default_factory=ServerSettings)


@dataclass
class RayGenerateSettings(GenerateSettings, RayRuntimeSettings):
    """Settings of task=generate: those of launch/generate.py, and where the ranks run."""


def register_settings() -> None:
    """Makes the settings of both programs known to Hydra."""
    engine_settings.register("ray_serve", RayServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    engine_settings.register("ray_generate", RayGenerateSettings, supervisor=SupervisorSettings)


def resolve_settings(settings: RayRuntimeSettings) -> None:
    """Checks what can be checked without a cluster, and names files by their absolute paths, because Ray actors run in
    another folder than this program.

    Raises ValueError.
    """
    settings.ray.check()
    settings.supervisor.check()
    named: list[tuple[Any, str]] = [(group, "path") for group in (settings.model, settings.draft, settings.second)]
    named += [(settings.model, "heads"), (settings, "index"), (settings, "corpus")]
    if isinstance(settings, RayServeSettings):
        named += [(settings.server, name) for name in ("api_keys_file", "tls_certificate", "tls_key")]
    if isinstance(settings, RayGenerateSettings):
        named.append((settings.grammar, "file"))
    for group, name in named:
        value = getattr(group, name)
        if value not in (None, "", "auto", "off"):
            setattr(group, name, absolute_name(value))
