"""Settings of the programs of launch/ray_job.py that have a front end: task=serve and task=generate."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch.cluster.group import RayRuntimeSettings
from launch.cluster.nodes import absolute_name
from launch.config import engine_settings
from launch.generate import GenerateSettings
from launch.server.settings import ServerSettings
from launch.supervisor.settings import SupervisorSettings


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
    """Checks what can be checked without a cluster, and gives the checkpoint a name that is good on every node.

    Raises ValueError.
    """
    settings.ray.check()
    settings.supervisor.check()
    settings.model.path = absolute_name(settings.model.path)
