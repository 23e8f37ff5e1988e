"""The settings of a sweep and of its points."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from launch.cluster.settings import RaySettings
from launch.config import engine_settings
from launch.config.runtime import RuntimeSettings
from launch.data.workloads import WorkloadSettings
from parallel.mesh import Mode


class PointLauncher(StrEnum):
    """What starts the ranks of a point.

    torchrun: torch's own launcher, on this machine. ray: Ray, on a cluster (ray_measurer.py).
    """

    torchrun = "torchrun"
    ray = "ray"


BASELINES = ("generate", "generate_static", "prompt_lookup", "assisted")


@dataclass
class BenchSettings(RuntimeSettings):
    """The settings of a point, and those of the sweep that it belongs to.

    workload: the prompts. concurrency: requests in flight at a time. ignore_eos: whether texts continue after their
    end, so that all have the same length. rounds: how often each point is measured. baselines: methods of transformers
    that are measured as well, out of BASELINES. assistant: folder of the smaller model that assisted generation needs.
    cores_per_rank: number of cores that each rank is pinned to. point_timeout_s: seconds after which a measurement is
    given up. output: folder of the results; if it holds results already, the sweep is resumed. report_title: title of
    the HTML report. launcher: what starts the ranks of each point. ray: settings for launcher=ray. sampling.seed is 0
    if it is not given.
    """

    workload: WorkloadSettings = field(default_factory=WorkloadSettings)
    concurrency: int = 1
    ignore_eos: bool = True
    rounds: int = 5
    baselines: list[str] = field(default_factory=lambda: ["generate"])
    assistant: str | None = None
    cores_per_rank: int = 1
    point_timeout_s: float = 900.0
    output: str | None = None
    report_title: str = "Modes of parallelism, side by side"
    launcher: PointLauncher = PointLauncher.torchrun
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.sampling.seed is None:  # with one seed, all points give the same text
            self.sampling = dataclasses.replace(self.sampling, seed=0)


# Settings that apply to the whole sweep and do not decide a point's result.
SWEEP_WIDE = ("rounds", "baselines", "point_timeout_s", "output", "report_title", "launcher", "ray")


def check_all(spanned: Sequence[BenchSettings]) -> None:
    """Raises ValueError that names the first value that is out of range or differs where all points must agree."""
    for settings in spanned:
        check(settings)
        for name in SWEEP_WIDE:
            values = getattr(settings, name), getattr(spanned[0], name)
            if values[0] != values[1]:
                raise ValueError(
                    f"{name} applies to the whole sweep and takes one value, not {values[1]} and {values[0]}"
                )


def check(settings: BenchSettings) -> None:
    """Raises ValueError that names the first value that is out of range."""
    for name, smallest in (("rounds", 1), ("concurrency", 1), ("cores_per_rank", 1), ("point_timeout_s", 1)):
        value = getattr(settings, name)
        if value < smallest:
            raise ValueError(f"{name}={value} must be at least {smallest}")
    unknown = [name for name in settings.baselines if name not in BASELINES]
    if unknown:
        raise ValueError(f"baselines={unknown[0]} is unknown; choose from [{','.join(BASELINES)}]")
    if "assisted" in settings.baselines and not settings.assistant:
        raise ValueError("baselines=[assisted] needs assistant=FOLDER, a smaller model with the same tokenizer")
    parallel = settings.parallel
    degrees = (parallel.ranks, parallel.lp, parallel.tp, parallel.pp)
    if parallel.mode in (Mode.lp, Mode.dp, Mode.tp, Mode.pp) and not any(degrees):
        raise ValueError(f"parallel={parallel.mode} on how many ranks? Give parallel.ranks=N")


def to_json_values(settings: BenchSettings) -> dict[str, Any]:
    """Returns all settings that decide a point's result, as JSON values."""
    return {
        key: value
        for key, value in engine_settings.to_json_values(settings, BenchSettings).items()
        if key not in SWEEP_WIDE
    }


def from_json_values(values: dict[str, Any]) -> BenchSettings:
    """Returns the settings that `to_json_values` has converted; those of the whole sweep have their defaults."""
    return engine_settings.from_json_values(values, BenchSettings)
