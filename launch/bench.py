"""Measures modes of parallelism side by side.

    python launch/bench.py -m parallel=single,lp,tp,pp parallel.ranks=2 decode=autoregressive,lookahead

With -m, settings that have several values separated by commas span a sweep: each combination of values is one point.
Every point, and transformers' own `generate`, is measured several times in interleaved order, on ranks of its own that
are pinned to cores. The program ends with a table, and writes summary.jsonl and report.html to the output folder. To
resume a sweep that was stopped, give the same output=FOLDER again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from importlib.util import find_spec

import hydra
from omegaconf import DictConfig, OmegaConf

from launch.cluster.settings import require_ray
from launch.config import configuration, engine_settings, process
from launch.config.ending import leave
from launch.config.resources import conf
from launch.data.workloads import WorkloadSettings
from launch.sweep.settings import BenchSettings, PointLauncher

log = logging.getLogger("lookahead")
# Packages that only this program needs.
EXTRA = ("jinja2", "matplotlib", "tabulate")


def compose_points() -> list[DictConfig]:
    """Returns the settings of each point that the command line spans. Raises what Hydra and OmegaConf raise."""
    found: list[DictConfig] = []

    @hydra.main(version_base="1.3", config_path=str(conf()), config_name="bench")
    def collect(config: DictConfig) -> None:
        found.append(config)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise errors, instead of ending the program
    # Points are measured in rounds, not one after the other, so Hydra only collects them. What it writes is not kept.
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as scratch:
        OmegaConf.register_new_resolver("scratch", lambda: scratch, replace=True)
        collect()
    return found


def measure() -> int:
    """Runs the sweep and returns the exit code; see `main`. Raises ValueError where that is 2."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise ValueError(f"{' and '.join(missing)} must be installed: pip install 'lookahead-parallel[bench]'")
    from launch.sweep import sweep  # late, because it needs these packages

    with configuration.usage_errors():
        spanned = [configuration.typed(config, BenchSettings) for config in compose_points()]
    if not spanned:  # Hydra was asked for something else, such as --cfg
        return 0
    if spanned[0].launcher is PointLauncher.ray:
        require_ray()
        from launch.sweep.ray_measurer import RayMeasurer

        return sweep.run(spanned, RayMeasurer(spanned[0].ray).measure)
    return sweep.run(spanned)


def main() -> int:
    """Runs the program and returns the exit code.

    0: all points were measured. 1: a point failed. 2: the command line cannot be used, or results cannot be written.
    130: Ctrl-C.
    """
    process.set_logging(rank=0)
    engine_settings.register("bench", BenchSettings, workload=WorkloadSettings)
    if configuration.asks_for_help(sys.argv[1:]):
        configuration.print_help("bench", __doc__)
        return 0
    try:
        return measure()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ValueError as error:
        log.error("error: %s", error)
        return 2


if __name__ == "__main__":
    leave(main())
