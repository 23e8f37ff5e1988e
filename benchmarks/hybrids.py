"""Measures steps of models with recurrent layers by their rows, natively and eagerly.

    python -m benchmarks.hybrids --dtypes float32 bfloat16

Weights are random, and shapes those of published models, with a smaller vocabulary. The table has the milliseconds of a
step by its rows, and of a prompt, by the native forward and by the model's own, which take turns, the least that a
step can take by the machine's own rates (its floor), and the speed of `auto` against plain decoding with the native
forward, of greedy texts.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.inputs import encode, read_prompts
from benchmarks.shared.methods import gain_of_auto
from benchmarks.shared.options import add_output, add_random_models, add_threads, make_parser, parse
from benchmarks.shared.random_weights import write_model
from benchmarks.shared.report import markdown_table, publish
from benchmarks.shared.shapes import make_config, num_parameters
from benchmarks.steps.machine_rates import MachineRates, RateGauge, time_once
from benchmarks.steps.step_curve import TIMED, time_forwards
from benchmarks.steps.step_floor import floor_of
from lp import Engine
from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES
from lp.tree import chain

VOCABULARY = 32_768
ATTENTION_EVERY_FOURTH = ["linear_attention"] * 3 + ["full_attention"]
LFM2: dict[str, Any] = {
    "model_type": "lfm2", "block_auto_adjust_ff_dim": False, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "conv_L_cache": 3, "layer_types": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "LFM2-350M": {**LFM2, "hidden_size": 1024, "intermediate_size": 4608, "num_attention_heads": 16},
    "LFM2-1.2B": {**LFM2, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32},
    "Qwen3.5-0.8B": {
        "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "layer_types": ATTENTION_EVERY_FOURTH * 6, "tie_word_embeddings": True,
    },
    "Mamba-2 as in Granite 4 350M": {
        "model_type": "granitemoehybrid", "hidden_size": 768, "shared_intermediate_size": 2048, "num_local_experts": 0,
        "num_hidden_layers": 32, "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48,
        "mamba_d_head": 32, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "tie_word_embeddings": True,
        "layer_types": ["full_attention" if n in (10, 13, 17, 27) else "linear_attention" for n in range(32)],
    },
}  # fmt: skip
NATIVE, EAGER, FLOOR = "native", "eager", "floor"
CACHED, ROUNDS, PROMPT = 256, 3, 256


@dataclass
class Found:
    """What was measured of one model. step_ms, prompt_ms: by the forward, or the floor, and of steps by the number of
    rows. gain: of auto against plain decoding.
    """

    shape: str
    dtype: str
    parameters: int
    step_ms: dict[str, dict[int, float]]
    prompt_ms: dict[str, float]
    gain: float


def main() -> None:
    arguments = parse_arguments()
    found = [measure(shape, dtype, arguments) for dtype in arguments.dtypes for shape in arguments.shapes]
    body, data = describe(found, arguments.rows), {"found": list(map(asdict, found))}
    publish(arguments.output, arguments.name, "Steps of models with recurrent layers", body, data)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_random_models(parser, list(SHAPES), [1, 8, 32])
    parser.add_argument("--name", default="hybrids", help="of the result files (default %(default)s)")
    parser.add_argument("--limit", type=int, default=3, help="texts (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="for each text (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    return parse(parser)


def measure(shape: str, dtype: str, arguments: argparse.Namespace) -> Found:
    config = make_config({"vocab_size": VOCABULARY, **SHAPES[shape]})
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_model(folder, config, DTYPES[dtype], seed=0)
        engine = Engine.from_pretrained(str(folder), dtype, "cpu", compile="on")
        models = {
            NATIVE: engine.checkpoint.model,
            EAGER: Engine.from_pretrained(str(folder), dtype, "cpu", compile="off", step_times="off").checkpoint.model,
        }
        caches = {name: fill_cache(model, CACHED, PROMPT) for name, model in models.items()}
        steps: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in arguments.rows} for name in models}
        prompts: dict[str, list[float]] = {name: [] for name in models}
        gauge, readings = RateGauge(engine.checkpoint.model.device, DTYPES[dtype]), list[MachineRates]()
        for _ in range(ROUNDS):
            readings.append(gauge.read())
            for name, model in models.items():
                for rows in arguments.rows:
                    steps[name][rows] += time_forwards(model, caches[name], rows, TIMED)
                prompts[name].append(time_prompt(model, caches[name]))
        texts = encode(engine, read_prompts(None, arguments.limit), arguments.max_new_tokens)
        gain = gain_of_auto(engine, texts, 0.0, arguments.max_new_tokens)
    step_ms = {name: {rows: 1000 * median(own) for rows, own in of_rows.items()} for name, of_rows in steps.items()}
    prompt_ms = {name: 1000 * median(seconds) for name, seconds in prompts.items()}
    floor = floor_of(config, DTYPES[dtype], readings)
    step_ms[FLOOR] = {rows: 1000 * floor.seconds(rows, CACHED) for rows in arguments.rows}
    prompt_ms[FLOOR] = 1000 * floor.seconds(PROMPT, CACHED)
    return Found(shape, dtype, num_parameters(config), step_ms, prompt_ms, gain)


def time_prompt(model: CausalModel, cache: KVCache) -> float:
    """The seconds of a forward of a prompt's rows."""
    tree = chain([token % model.vocab_size for token in range(PROMPT)])
    return time_once(lambda: model.forward(tree, cache, 1), model.device)


def describe(found: list[Found], rows: list[int]) -> str:
    return markdown_table(
        ["model", "parameters", "", *(f"{count} rows" for count in rows), f"prompt of {PROMPT}", "auto / plain"],
        [
            [
                *([f"{one.shape}, {one.dtype}", f"{one.parameters / 1e6:.0f}M"] if name == NATIVE else ["", ""]),
                f"ms, {name}",
                *(f"{one.step_ms[name][count]:.1f}" for count in rows),
                f"{one.prompt_ms[name]:.0f}",
                f"{one.gain:.2f}" if name == NATIVE else "",
            ]
            for one in found
            for name in (NATIVE, EAGER, FLOOR)
        ],
        num_text=3,
    )


if __name__ == "__main__":
    main()
