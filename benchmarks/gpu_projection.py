"""Projects a 7B model on 2, 4 and 8 GPUs from published figures and the trees of a real model.

    python -m benchmarks.gpu_projection --model smollm2 --prompts FOLDER --threads 1

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, as for benchmarks.real_model. One device decodes texts
of all categories with trees of given numbers of rows (decode=auto decode.rows=N), and each tree is split among 1, 2, 4
and 8 devices: tokens per step and rows are exact. The time of a step is computed, for lookahead parallelism (lp: each
device holds the whole model and a part of the rows), tensor parallelism (tp: a part of the model and all rows) and
both together, each with the rows that are fastest for it (benchmarks/projections/modelled_step.py).

NOTHING OF THE SPEED IS MEASURED, and another model gives other texts. A run that was stopped goes on where it was, if
it is started again with the same options.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.projections.gpus import (
    A100_NVLINK,
    GPT_FAST,
    GPUS,
    LAYER_OVERHEAD_US,
    SHARE_OF_BANDWIDTH,
    SHARE_OF_FLOPS,
)
from benchmarks.projections.modelled_step import Choice, Setting, fastest, shares_of, step_seconds
from benchmarks.projections.network import EXCHANGE_US, add_exchange
from benchmarks.projections.shared_trees import SharedTrees, add_up, record_texts
from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import load_engine
from benchmarks.shared.options import add_decoded_texts, add_output, add_threads, ascending_numbers, make_parser, parse
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import bullets, markdown_table, progress, publish
from benchmarks.shared.shapes import SHAPES, make_config
from launch.config import resources
from launch.config.resources import SMOLLM2
from lp.model.gguf import unpacked_folder
from lp.platform.disk_cache import digest, read_json, write_json

DEGREES = (1, 2, 4, 8)
TARGETS = tuple(GPT_FAST)
# The ways of using devices, by name.
WAYS = {"lp": lambda lp, tp: tp == 1, "tp": lambda lp, tp: lp == 1, "lp x tp": lambda lp, tp: lp > 1 and tp > 1}


def main() -> None:
    parser = make_parser(__doc__)
    add_decoded_texts(parser, limit=14, max_new_tokens=48)
    parser.add_argument(
        "--rows", type=ascending_numbers, default=[1, 8, 16, 32, 64, 128, 256, 512], metavar="R,R,...",
        help="rows of the trees; 1 is autoregressive (default 1,8,16,...,512)",
    )  # fmt: skip
    parser.add_argument("--context", type=int, default=1024, help="cached tokens of the GPUs' steps (default 1024)")
    add_exchange(parser, "an lp exchange takes")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    try:
        folder = unpacked_folder(resources.resolve(SMOLLM2 if arguments.model == "smollm2" else arguments.model))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if 1 not in arguments.rows or arguments.context < 1:
        parser.error("--rows must begin with 1, and --context must be at least 1")
    kept_in = arguments.output / f"gpu_projection-{Path(folder).name}-{arguments.dtype}.partial.json"
    recorded = read_or_record(folder, kept_in, arguments)
    trees = add_up(recorded, DEGREES)
    projected = {
        name: {gpu.name: project(name, trees, Setting(gpu, arguments.context, arguments.exchange_us)) for gpu in GPUS}
        for name in TARGETS
    }
    publish(
        arguments.output,
        f"gpu_projection-{Path(folder).name}-{arguments.dtype}",
        "PROJECTED, not measured: 7B shapes on 2, 4 and 8 GPUs",
        describe(trees, recorded, projected, arguments.context, arguments.exchange_us),
        {
            "trees": [asdict(one) for one in recorded],
            "gpus": [asdict(gpu) for gpu in GPUS],
            "projected": {
                name: {gpu: [asdict(one) for one in choices] for gpu, choices in by_gpu.items()}
                for name, by_gpu in projected.items()
            },
        },
        plot(projected),
    )
    kept_in.unlink(missing_ok=True)


def read_or_record(folder: str, kept_in: Path, arguments: argparse.Namespace) -> list[SharedTrees]:
    """The trees of all texts. Those of each number of rows are kept in a file as soon as they are decoded."""
    asked = read_categories(arguments.prompts, arguments.limit)
    key = digest([[one.text for one in asked], arguments.max_new_tokens, DEGREES])
    kept: dict[str, Any] = read_json(kept_in) or {}
    kept = kept if kept.get("key") == key else {"key": key}
    missing = [rows for rows in arguments.rows if str(rows) not in kept]
    if missing:
        checkpoint = load_engine(folder, arguments.dtype, "cpu").checkpoint
        encode = checkpoint.tokenizer.encode
        texts = [(one.category, one.for_model(checkpoint.tokenizer), one.question is None) for one in asked]
        prompts = [(category, encode(text, add_special_tokens=raw)) for category, text, raw in texts]
        for rows in progress(missing, "decoding", unit="number of rows"):
            found = record_texts(checkpoint, prompts, rows, DEGREES, arguments.max_new_tokens)
            kept[str(rows)] = [asdict(one) for one in found]
            write_json(kept_in, kept)
    return [
        SharedTrees(**{**one, "largest": {int(degree): rows for degree, rows in one["largest"].items()}})
        for rows in arguments.rows
        for one in kept[str(rows)]
        if one["steps"]
    ]


def project(name: str, trees: Mapping[int, SharedTrees], setting: Setting) -> list[Choice]:
    """Autoregressive decoding on one device, then the fastest rows for every lp x tp of 1 to 8 devices."""
    shares = shares_of(make_config(SHAPES[name]), DEGREES)
    pairs = [(lp, tp) for lp in DEGREES for tp in DEGREES if lp * tp in DEGREES]
    plain = fastest(shares, {1: trees[1]}, 1, 1, setting)
    return [plain, *(fastest(shares, trees, lp, tp, setting) for lp, tp in pairs)]


def best(choices: Sequence[Choice], way: str, devices: int) -> Choice | None:
    """The fastest choice of a way of using so many devices."""
    fitting = [one for one in choices[1:] if one.lp * one.tp == devices and WAYS[way](one.lp, one.tp)]
    return max(fitting, key=lambda one: one.tokens_per_s, default=None)


def describe(
    trees: Mapping[int, SharedTrees],
    recorded: Sequence[SharedTrees],
    projected: Mapping[str, Mapping[str, Sequence[Choice]]],
    context: int,
    exchange_us: float,
) -> str:
    notes = [
        "Tokens per step and rows: exact, of a small model's texts. The time of a step: computed.",
        f"A step reads weights and the cache of {context} tokens at {SHARE_OF_BANDWIDTH:.0%} of the data sheet's "
        f"bandwidth, or computes at {SHARE_OF_FLOPS:.0%} of its FLOP/s, whichever takes longer; each layer adds "
        f"{LAYER_OVERHEAD_US:g} us (both from gpt-fast on an A100, assumed for all).",
        f"lp: one exchange of {exchange_us:g} us a step, by the host; two ranks on a CPU were measured to take "
        f"{EXCHANGE_US:g} us in shared memory, with cold caches. The host's own work is the processor time that was "
        "measured with the texts; it is added to every step.",
        "Each figure is that of the number of rows that is fastest for it. Speed-up: over autoregressive decoding on "
        "one device.",
        *(f"{gpu.name}: {source}" for gpu in GPUS for source in gpu.sources),
    ]
    parts = ["**PROJECTED. No GPU has run any of this.**", bullets(notes), "## Measured: tokens per step by rows"]
    parts += [_table_of_trees(trees, recorded), "## PROJECTED: the model of a step beside published speeds", _check()]
    for name, by_gpu in projected.items():
        parts += [f"## PROJECTED: {name}, bfloat16", _table_of_speeds(by_gpu)]
    return "\n\n".join(parts)


def _table_of_trees(trees: Mapping[int, SharedTrees], recorded: Sequence[SharedTrees]) -> str:
    categories = list(dict.fromkeys(one.category for one in recorded))
    rows = []
    for number, total in trees.items():
        by_category = [add_up([one for one in recorded if one.category == name], DEGREES) for name in categories]
        speeds = [found[number].tokens / found[number].steps if number in found else None for found in by_category]
        cells = ["-" if speed is None else f"{speed:.2f}" for speed in speeds]
        parts = [f"{total.largest[degree] / total.steps:.0f}" for degree in DEGREES[1:]]
        host = f"{1e3 * total.host_s / total.steps:.2f}"
        rows.append([number, f"{total.tokens / total.steps:.2f}", *cells, *parts, host])
    columns = ["rows", "tokens/step", *categories, *(f"largest of {degree} parts" for degree in DEGREES[1:])]
    return markdown_table([*columns, "host, ms/step"], rows)


def _check() -> str:
    """What the model of a step gives for the A100s of gpt-fast, which has published its speeds."""
    setting, rows = Setting(A100_NVLINK, 1, 0.0), []
    for name, speeds in GPT_FAST.items():
        for tp, share in shares_of(make_config(SHAPES[name]), DEGREES).items():
            computed = 1 / step_seconds(share, tp, 1, setting)
            rows.append((name, tp, f"{speeds[tp]:.1f}", f"{computed:.1f}", f"{computed / speeds[tp] - 1:+.0%}"))
    columns = ["model", "devices, tp", "gpt-fast, tokens/s", "computed, tokens/s", "difference"]
    return f"{A100_NVLINK.name}: {'; '.join(A100_NVLINK.sources)}.\n\n" + markdown_table(columns, rows)


def _table_of_speeds(by_gpu: Mapping[str, Sequence[Choice]]) -> str:
    rows = []
    for gpu, choices in by_gpu.items():
        plain = choices[0].tokens_per_s
        rows.append((gpu, 1, "autoregressive", 1, "1.00", f"{choices[0].step_ms:.1f}", f"{plain:.0f}", "1.00x"))
        for devices in DEGREES:
            for way in WAYS if devices > 1 else ["lp"]:
                one = best(choices, way, devices)
                if one is None:
                    continue
                name = {"lp": "auto" if devices == 1 else f"lp={one.lp}", "tp": f"tp={one.tp}"}.get(
                    way, f"lp={one.lp} x tp={one.tp}"
                )
                speed = one.tokens_per_s
                figures = f"{one.tokens_per_step:.2f}", f"{one.step_ms:.1f}", f"{speed:.0f}", f"{speed / plain:.2f}x"
                rows.append((gpu, devices, name, one.rows, *figures))
    columns = ["GPU", "devices", "mode", "rows", "tokens/step", "PROJECTED ms/step", "PROJECTED tokens/s", "speed-up"]
    return markdown_table(columns, rows)


def plot(projected: Mapping[str, Mapping[str, Sequence[Choice]]]) -> Figure:
    """PROJECTED speed-up by the number of devices, a panel for each GPU, of the first model."""
    name, by_gpu = next(iter(projected.items()))
    figure, panels = make_axes(len(by_gpu))
    for axes, (gpu, choices) in zip(panels, by_gpu.items(), strict=True):
        for way, colour, marker in zip(WAYS, COLOURS, MARKERS):
            found = {devices: best(choices, "lp" if devices == 1 else way, devices) for devices in DEGREES}
            shown = {devices: one.tokens_per_s / choices[0].tokens_per_s for devices, one in found.items() if one}
            axes.plot(list(shown), list(shown.values()), color=colour, marker=marker, label=way)
        axes.set_title(f"PROJECTED: {name}\n{gpu}", fontsize=9)
        axes.set_xlabel("devices")
        axes.set_xticks(DEGREES)
    panels[0].set_ylim(bottom=0)  # the panels share their axis
    panels[0].set_ylabel("speed over autoregressive, one device")
    panels[0].legend()
    return figure


if __name__ == "__main__":
    main()
