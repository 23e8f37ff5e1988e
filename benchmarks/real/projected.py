"""The projection of lookahead and tensor parallelism to more devices, by benchmarks.projection."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.real.child import run_benchmark
from benchmarks.real.ranks import choose_prompts, write_prompts
from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.report import bullets, markdown_table
from lp.platform.disk_cache import digest

PART = "projection"
RANKS = ("1", "2", "4", "8")
WINDOWS = ("15,5,15", "30,5,30")
# One device computes what up to eight would, for three methods: a text of 32 tokens takes about 70 seconds a round.
REPEATS = 2
NUM_PROMPTS = 1
MOST_NEW_TOKENS = 32
DTYPES = ("bfloat16",)


def tasks(settings: RealModelSettings) -> list[Task]:
    prompts = choose_prompts(settings.asked)[:NUM_PROMPTS]
    asked = {"prompts": digest([prompt.text for prompt in prompts]), "max_new_tokens": _new_tokens(settings)}
    return [Task(PART, dtype, asked, partial(measure, settings, dtype)) for dtype in DTYPES]


def measure(settings: RealModelSettings, dtype: str) -> Figures:
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        path = write_prompts(Path(folder), settings.model, choose_prompts(settings.asked)[:NUM_PROMPTS])
        options = ["--model", str(settings.model), "--prompts", str(path), "--dtype", dtype]
        options += ["--max-new-tokens", str(_new_tokens(settings)), "--ranks", *RANKS, "--settings", *WINDOWS]
        options += ["--repeats", str(REPEATS), "--measure-up-to", "0"]
        found = run_benchmark("projection", *options)
    return {name: found[name] for name in ("networks", "projections", "notes")}


def _new_tokens(settings: RealModelSettings) -> int:
    return min(settings.max_new_tokens, MOST_NEW_TOKENS)


def describe(kept: Mapping[str, Figures]) -> str:
    parts = ["PROJECTED from steps that one device recorded, not measured."]
    for dtype, figures in kept.items():
        rows = [
            (
                one["case"]["mode"],
                one["case"]["ranks"],
                one["case"]["method"],
                f"{one['tokens'] / (one['prompts']['steps'] + one['decoding']['steps']):.2f}",
                f"{one['projected_tokens_per_s'][0]:.1f}",
            )
            for one in figures["projections"]
        ]
        latency = figures["networks"][0]["latency_us"]
        columns = ["mode", "devices", "method", "tokens/step", "PROJECTED tokens/s"]
        parts += [f"{dtype}, {latency:g} µs per collective:", markdown_table(columns, rows), bullets(figures["notes"])]
    return "\n\n".join(parts)
