"""Times the attention of a prompt's chunk in the layers of a shape: our own kernel, and FlashAttention's functions.

It is an item of benchmarks.gpu, which starts it. Every function that is here runs through the adapter that a model
uses, and is compared with our own kernel.

    R rows, C cached tokens
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from benchmarks.gpu.steps import MILLI
from benchmarks.shared.report import markdown_table, progress
from benchmarks.shared.shapes import describe_shape, read_config
from lp.model.checkpoint import DTYPES
from lp.model.gpu.device import current
from lp.model.gpu.flash import KERNELS, FlashKernel
from lp.model.gpu.prompts import OWN, LayerKind, Problem, find_fault, find_obstacle, measure_s
from lp.model.kernels import LayerAttention
from lp.tree import chain


@dataclass(frozen=True)
class PromptSample:
    """A function in one kind of layer. ms: None if it did not run, for the reason that `obstacle` says."""

    layer: str
    function: str
    cached: int
    ms: float | None
    tera_per_s: float | None = None
    obstacle: str = ""


def run() -> None:
    arguments = parse_arguments()
    config, device = read_config(arguments.config), torch.device(arguments.device)
    chunks = [(kind, cached) for kind in kinds_of(config) for cached in arguments.cached]
    samples: list[PromptSample] = []
    with torch.inference_mode(), current(device):
        for kind, cached in progress(chunks, "measuring", unit="chunk"):
            samples += measure(kind, DTYPES[arguments.dtype], device, arguments.rows, cached)
            write(arguments.output, describe_shape(config), arguments.rows, samples)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--cached", type=int, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def kinds_of(config: PreTrainedConfig) -> list[LayerKind]:
    """The kinds of layers of a configuration, each once."""
    text: Any = config.get_text_config(decoder=True)
    num_heads, heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    scale = (getattr(text, "query_pre_attn_scalar", None) or head_dim) ** -0.5
    window, softcap = getattr(text, "sliding_window", None), getattr(text, "attn_logit_softcapping", None)
    near = {name == "sliding_attention" for name in getattr(text, "layer_types", None) or ["full_attention"]}
    return [
        LayerKind(
            heads, num_heads // heads, head_dim, head_dim, LayerAttention(scale, window if is_near else None, softcap)
        )
        for is_near in sorted(near)
    ]


def measure(
    kind: LayerKind, dtype: torch.dtype, device: torch.device, num_rows: int, num_cached: int
) -> list[PromptSample]:
    """All functions, our own first."""
    of_kind = partial(PromptSample, kind.describe())
    if device.type != "cuda":
        return [
            of_kind(name, num_cached, None, obstacle="it needs a GPU") for name in (OWN, *(k.name for k in KERNELS))
        ]
    problem = Problem.make(kind, dtype, device, [(chain([0] * num_rows), num_cached)])
    expected, operations = problem.by_own(), count_operations(kind, num_rows, num_cached)

    def timed(name: str, run: Any) -> PromptSample:
        seconds = measure_s(run, device)
        return of_kind(name, num_cached, seconds * MILLI, operations / seconds / 1e12)

    def sample(kernel: FlashKernel) -> PromptSample:
        run = partial(problem.by, kernel)
        obstacle = find_obstacle(kernel, kind, dtype, device) or find_fault(run, expected)
        return of_kind(kernel.name, num_cached, None, obstacle=obstacle) if obstacle else timed(kernel.name, run)

    return [timed(OWN, problem.by_own), *map(sample, KERNELS)]


def count_operations(kind: LayerKind, num_rows: int, num_cached: int) -> int:
    """Multiplications and additions of both products, for the keys that rows see."""
    window = kind.how.sliding_window or num_cached + num_rows
    pairs = sum(min(num_cached + row + 1, window) for row in range(num_rows))
    return 4 * pairs * kind.num_heads * kind.num_groups * kind.head_dim


def write(folder: Path, shape: str, num_rows: int, samples: list[PromptSample]) -> None:
    ran = [one for one in samples if one.ms is not None]
    best = min(ran, key=lambda one: (-one.cached, one.ms), default=None)
    summary = "no function ran, as there is no GPU"
    if best is not None:
        own = next(one.ms for one in ran if (one.layer, one.cached, one.function) == (best.layer, best.cached, OWN))
        others = "the only one that ran" if best.function == OWN else f"{OWN} {own:.2f} ms"
        summary = f"{num_rows:,} rows after {best.cached:,} tokens: {best.function} {best.ms:.2f} ms, {others}"
    data = {"summary": summary, "shape": shape, "rows": num_rows, "samples": [vars(one) for one in samples]}
    (folder / "prompts.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    columns = ["layer", "cached", "function", "ms", "TFLOP/s"]
    rows = [
        (one.layer, f"{one.cached:,}", one.function, one.obstacle or f"{one.ms:.3f}",
         "" if one.tera_per_s is None else f"{one.tera_per_s:.0f}")
        for one in samples
    ]  # fmt: skip
    text = f"{shape}; the attention of one layer for a chunk of {num_rows:,} rows.\n\n{markdown_table(columns, rows)}"
    (folder / "prompts.md").write_text(f"# Prompts\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    run()
