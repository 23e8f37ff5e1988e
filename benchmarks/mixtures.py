"""Measures what further rows cost a mixture of experts, beside a dense model of its active size.

    python -m benchmarks.mixtures --dtypes float32 bfloat16

Weights are random. Each further row of a step is sent to experts of its own, whose weights must be read, so a step of
many rows takes longer than that of a dense model. The table has the milliseconds of a step by its rows, the least that
it can take by the machine's own rates (its floor, with the experts of one row), those that `auto` knows after it has
decoded some texts, how many experts of a layer are read by the rows with which step times are measured at start, and by
as many tokens of a text, and the speed of `auto` against plain decoding: of greedy texts, and of texts at temperature
1, which nothing can guess.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.inputs import encode, read_prompts
from benchmarks.shared.methods import gain_of_auto
from benchmarks.shared.options import add_output, add_random_models, add_threads, make_parser, parse
from benchmarks.shared.random_weights import write_model
from benchmarks.shared.report import markdown_table, publish
from benchmarks.shared.shapes import make_config
from benchmarks.steps.machine_rates import MachineRates, RateGauge
from benchmarks.steps.step_curve import TIMED, make_tree, time_forwards
from benchmarks.steps.step_floor import floor_of
from lp import Engine
from lp.model.checkpoint import DTYPES

SIZES: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
NUM_ACTIVE = 4
EXPERT: dict[str, Any] = {"model_type": "qwen3_moe", "moe_intermediate_size": 192, "num_experts_per_tok": NUM_ACTIVE}
SHAPES: dict[str, dict[str, Any]] = {
    "128 experts, 4 active": {**SIZES, **EXPERT, "intermediate_size": 768, "num_experts": 128},
    "32 experts, 4 active": {**SIZES, **EXPERT, "intermediate_size": 768, "num_experts": 32},
    "dense": {**SIZES, "model_type": "qwen3", "intermediate_size": 768},
    "gpt-oss-20b, a quarter as wide and half as deep": {
        "model_type": "gpt_oss", "hidden_size": 720, "intermediate_size": 720, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64, "num_local_experts": 32,
        "num_experts_per_tok": NUM_ACTIVE, "layer_types": ["sliding_attention", "full_attention"] * 6,
    },
}  # fmt: skip
EMBEDDING = "model.embed_tokens.weight"
TEMPERATURES = (0.0, 1.0)
CACHED, ROUNDS = 256, 3


@dataclass
class Found:
    """What was measured of one model.

    step_ms, floor_ms, known_ms: by the number of rows. probe_experts, text_experts: the mean of the layers, by the
    number of rows. gains: of auto against plain decoding, by the temperature.
    """

    shape: str
    dtype: str
    step_ms: dict[int, float]
    floor_ms: dict[int, float]
    known_ms: dict[int, float]
    probe_experts: dict[int, float]
    text_experts: dict[int, float]
    gains: dict[float, float]


def main() -> None:
    arguments = parse_arguments()
    found = [measure(shape, dtype, arguments) for dtype in arguments.dtypes for shape in arguments.shapes]
    body, data = describe(found, arguments.rows), {"found": list(map(asdict, found))}
    publish(arguments.output, arguments.name, "What further rows cost mixtures of experts", body, data)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_random_models(parser, list(SHAPES), [1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--name", default="mixtures", help="of the result files (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="leave the models there (default: a temporary folder)")
    parser.add_argument("--limit", type=int, default=6, help="texts at each temperature (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="for each text (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    return parse(parser)


def measure(shape: str, dtype: str, arguments: argparse.Namespace) -> Found:
    with TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary, f"{shape.replace(', ', '-').replace(' ', '-')}-{dtype}")
        write_model(folder, make_config(SHAPES[shape]), DTYPES[dtype], seed=0)
        spread_tokens(folder, SHAPES[shape]["hidden_size"])
        engine = Engine.from_pretrained(str(folder), dtype, "cpu", compile="on")
        model = engine.checkpoint.model
        cache = fill_cache(model, CACHED, arguments.rows[-1])
        gauge, rates = RateGauge(model.device, DTYPES[dtype]), list[MachineRates]()
        seconds: dict[int, list[float]] = {rows: [] for rows in arguments.rows}
        for _ in range(ROUNDS):
            rates.append(gauge.read())
            for rows in arguments.rows:
                seconds[rows] += time_forwards(model, cache, rows, TIMED)
        step_ms = {rows: 1000 * median(own) for rows, own in seconds.items()}
        floor = floor_of(model.model.config, DTYPES[dtype], rates)
        floor_ms = {rows: 1000 * floor.seconds(rows, CACHED) for rows in arguments.rows}
        prompts = encode(engine, read_prompts(None, arguments.limit), arguments.max_new_tokens)
        gains = {at: gain_of_auto(engine, prompts, at, arguments.max_new_tokens) for at in TEMPERATURES}
        assert engine.learner is not None
        known_ms = {rows: 1000 * engine.learner.times.at(rows) for rows in arguments.rows}
        text = [token for prompt in prompts for token in prompt][: arguments.rows[-1]]
        probe = make_tree(model, arguments.rows[-1]).tokens.tolist()
        del engine, model, cache
        probed, read = (count_experts(folder, shape, tokens, arguments.rows) for tokens in (probe, text))
        return Found(shape, dtype, step_ms, floor_ms, known_ms, probed, read, gains)


def spread_tokens(folder: Path, hidden_size: int) -> None:
    """Makes the numbers of embeddings about 1: small ones would drown in what all rows of a text have in common, and
    all rows would be sent to the same experts.
    """
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    file = folder / index["weight_map"][EMBEDDING]
    tensors = load_file(file)
    tensors[EMBEDDING] *= hidden_size**0.5
    save_file(tensors, file, metadata={"format": "pt"})


@torch.inference_mode()
def count_experts(folder: Path, shape: str, tokens: list[int], rows: list[int]) -> dict[int, float]:
    """The experts of a layer to which the first tokens are sent, by the number of these; none in a dense model."""
    if not {"num_experts", "num_local_experts"} & SHAPES[shape].keys():
        return {}
    model = AutoModelForCausalLM.from_pretrained(folder)
    routed: tuple[Tensor, ...] = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    chosen = [layer.topk(NUM_ACTIVE).indices for layer in routed]
    return {count: sum(len(one[:count].unique()) for one in chosen) / len(chosen) for count in rows}


def describe(found: list[Found], rows: list[int]) -> str:
    steps = markdown_table(
        ["model", "", *(f"{count} rows" for count in rows)],
        [
            line
            for one in found
            for line in (
                [f"{one.shape}, {one.dtype}", "ms of a step", *(f"{one.step_ms[count]:.1f}" for count in rows)],
                ["", "of a plain step", *(f"{one.step_ms[count] / one.step_ms[rows[0]]:.2f}" for count in rows)],
                ["", "ms of the floor", *(f"{one.floor_ms[count]:.1f}" for count in rows)],
                ["", "ms that auto knows", *(f"{one.known_ms[count]:.1f}" for count in rows)],
            )
        ],
        num_text=2,
    )
    experts = markdown_table(
        ["model", "experts of a layer that are read", *(f"{count} rows" for count in rows)],
        [
            [f"{one.shape}, {one.dtype}", name, *(f"{counts[count]:.1f}" for count in rows)]
            for one in found
            for name, counts in (("measured at start", one.probe_experts), ("tokens of a text", one.text_experts))
            if counts
        ],
        num_text=2,
    )
    gains = markdown_table(
        ["model", *(f"auto / plain, temperature {temperature:g}" for temperature in TEMPERATURES)],
        [[f"{one.shape}, {one.dtype}", *(f"{one.gains[at]:.3f}" for at in TEMPERATURES)] for one in found],
    )
    return "\n\n".join([steps, experts, gains])


if __name__ == "__main__":
    main()
