"""Two lookahead-parallel ranks of one core over one rank of one core, on chat prompts of one category."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from transformers import AutoTokenizer

from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.categories import CategoryPrompt
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE
from benchmarks.shared.report import markdown_table, progress
from launch.data.workloads import WorkloadSettings
from launch.sweep.points import runtime_point
from launch.sweep.ranks import measure as measure_point
from launch.sweep.ranks import usable_cores
from launch.sweep.records import Run
from launch.sweep.settings import BenchSettings
from lp import Auto, Autoregressive, Lookahead, Sampling
from lp.model.checkpoint import ModelSettings
from lp.model.compilation import CompileMode
from lp.platform.disk_cache import digest
from lp.request import DecodingMethod
from parallel.mesh import Mode, ParallelSettings

PART = "ranks"
CATEGORY = "GSM8K, chat"
NUM_PROMPTS = 6
DTYPES = ("float32", "bfloat16")
METHODS: dict[str, DecodingMethod] = {
    AUTOREGRESSIVE: Autoregressive(),
    "auto": Auto(),
    "lookahead (15, 5, 15)": Lookahead(15, 5, 15),
}


def tasks(settings: RealModelSettings) -> list[Task]:
    prompts = choose_prompts(settings.asked)
    asked = {
        "prompts": digest([prompt.text for prompt in prompts]),
        "max_new_tokens": settings.max_new_tokens,
        "rounds": settings.rounds,
        "compile": settings.compile,
    }
    return [
        Task(PART, f"{dtype}, {method}", asked, partial(measure, settings, prompts, dtype, method))
        for dtype in DTYPES
        for method in METHODS
    ]


def choose_prompts(asked: Sequence[CategoryPrompt]) -> list[CategoryPrompt]:
    """The first prompts of CATEGORY, or of the first category there is."""
    names = [prompt.category for prompt in asked]
    name = CATEGORY if CATEGORY in names else names[0]
    return [prompt for prompt in asked if prompt.category == name][:NUM_PROMPTS]


def measure(settings: RealModelSettings, prompts: Sequence[CategoryPrompt], dtype: str, method: str) -> Figures:
    """Rounds of one rank and of two, in turn. Raises ValueError if one fails or there are too few cores."""
    if len(usable_cores()) < 2:
        raise ValueError("two ranks of one core each need two cores")
    runs: dict[int, list[Run]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        path = write_prompts(Path(folder), settings.model, prompts)
        workload = WorkloadSettings(path=str(path), max_new_tokens=settings.max_new_tokens)
        bench = BenchSettings(
            model=ModelSettings(str(settings.model), dtype, "cpu", compile=CompileMode(settings.compile)),
            sampling=Sampling(temperature=0.0),
            workload=workload,
            ignore_eos=False,
        )
        turns = [ranks for number in range(settings.rounds) for ranks in ((1, 2) if number % 2 == 0 else (2, 1))]
        for ranks in progress(turns, "ranks", unit="run"):
            run = measure_once(ranks, METHODS[method], bench)
            if run.error:
                raise ValueError(f"{method} on {ranks} rank(s) failed: {run.error}")
            runs[ranks].append(run)
    texts = {ranks: [text.digest for text in found[-1].texts] for ranks, found in runs.items()}
    return {
        "tokens_per_s": {str(ranks): [run.tokens_per_s for run in found] for ranks, found in runs.items()},
        "tokens_per_step": {str(ranks): found[-1].tokens_per_step for ranks, found in runs.items()},
        "num_texts": len(prompts),
        "same_texts": sum(one == other for one, other in zip(texts[1], texts[2], strict=True)),
    }


def measure_once(num_ranks: int, decode: DecodingMethod, settings: BenchSettings) -> Run:
    """One run of ranks that are started and pinned as the sweep does it, or its failure."""
    parallel = ParallelSettings(Mode.lp if num_ranks > 1 else Mode.single, ranks=num_ranks)
    point = runtime_point(replace(settings, decode=decode, parallel=parallel))
    with tempfile.TemporaryDirectory() as logs:
        return measure_point(point, 0, settings.point_timeout_s, Path(logs))


def write_prompts(folder: Path, model: Path, prompts: Sequence[CategoryPrompt]) -> Path:
    """A file of prompts as the model gets them, which ranks read."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": one.for_model(tokenizer)}) + "\n" for one in prompts))
    return path


def describe(kept: Mapping[str, Figures]) -> str:
    rows = []
    for name, figures in kept.items():
        one, two = figures["tokens_per_s"]["1"], figures["tokens_per_s"]["2"]
        ratio = median(fast / slow for fast, slow in zip(two, one, strict=True))
        rows.append(
            (
                name,
                f"{median(one):.1f}",
                f"{median(two):.1f}",
                f"{ratio:.2f}x",
                f"{figures['tokens_per_step']['2']:.2f}",
                f"{figures['same_texts']}/{figures['num_texts']}",
            )
        )
    columns = ["", "one rank, tokens/s", "two ranks, tokens/s", "ratio", "tokens/step", "same text"]
    return (
        "Tokens per second on ranks of one core each, the reading of the prompts included; the ratio is the median of "
        f"the rounds. Same text: of two ranks and of one.\n\n{markdown_table(columns, rows)}"
    )
