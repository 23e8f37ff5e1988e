"""Texts of every category by every method: the source of identity, differing texts, tokens per step and speed.

All methods take turns on every prompt. What `auto` learns from a text it keeps for the next, as in a server.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.real import indexing
from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.categories import CategoryPrompt, by_category
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, DecodedText, take_turns
from benchmarks.shared.inputs import encode
from benchmarks.shared.methods import DecodePrompt, generate_counted, make_methods, timed
from launch.sweep.measure import digest
from lp import Auto, Autoregressive, Engine, Lookahead
from lp.model.checkpoint import DTYPES
from lp.platform import disk_cache
from lp.request import DecodingMethod

PART = "texts"
AUTO, AUTO_64, LOOKAHEAD = "auto", "auto, 64 rows", "lookahead (15, 5, 15)"
INDEXED, INDEXED_64, INDEXED_128 = "auto, index", "auto, 64 rows, index", "auto, 128 rows, index"
OTHER_KERNEL = "transformers generate, eager attention"
METHODS: dict[str, DecodingMethod] = {
    AUTOREGRESSIVE: Autoregressive(),
    AUTO: Auto(index_drafts=False),
    AUTO_64: Auto(rows=64, index_drafts=False),
    INDEXED: Auto(),
    INDEXED_64: Auto(rows=64),
    INDEXED_128: Auto(rows=128),
    LOOKAHEAD: Lookahead(15, 5, 15),
}
# Greedy in float32: identity, tokens per step, speed. Greedy in bfloat16: differing texts, speed. Sampled: tokens per
# step.
RUNS = (("float32", 0.0), ("bfloat16", 0.0), ("float32", 0.8))
# New tokens of the texts before the first measured one: the first pays for what is made only once.
WARM_UP = 8


class LoadedModel:
    """One model at a time, as this project and as transformers run it; loaded when it is first needed."""

    def __init__(self, settings: RealModelSettings):
        self.settings = settings
        self._dtype: str | None = None
        self._held: tuple[Engine, PreTrainedModel] | None = None

    def load(self, dtype: str) -> tuple[Engine, PreTrainedModel]:
        """Raises ValueError if the checkpoint cannot be used."""
        if self._held is None or self._dtype != dtype:
            self.release()
            path = str(self.settings.model)
            if not self.settings.index.is_file():
                indexing.build(self.settings)
            index = str(self.settings.index)
            engine = Engine.from_pretrained(path, dtype, "cpu", compile=self.settings.compile, index=index)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], use_safetensors=True)
            self._dtype, self._held = dtype, (engine, model.eval())
        return self._held

    def release(self) -> None:
        """Frees the model's memory, before other processes load it."""
        self._held = None
        gc.collect()


def tasks(settings: RealModelSettings, loaded: LoadedModel) -> list[Task]:
    found = []
    for dtype, temperature in RUNS:
        for category, prompts in by_category(settings.asked).items():
            chosen = prompts[: settings.num_sampled] if temperature else prompts
            asked = {
                **settings.index_facts,
                "prompts": disk_cache.digest([prompt.text for prompt in chosen]),
                "max_new_tokens": settings.max_new_tokens,
                "threads": settings.threads,
                "compile": settings.compile,
            }
            name = run_name(dtype, temperature, category)
            found.append(Task(PART, name, asked, partial(measure, loaded, dtype, temperature, chosen)))
    return found


def run_name(dtype: str, temperature: float, category: str) -> str:
    return f"{dtype}, T={temperature:g}, {category}"


def measure(loaded: LoadedModel, dtype: str, temperature: float, asked: Sequence[CategoryPrompt]) -> Figures:
    """Figures of each text, by method, in the order of the prompts."""
    settings = loaded.settings
    torch.set_num_threads(settings.threads)
    engine, model = loaded.load(dtype)
    texts = [prompt.for_model(engine.checkpoint.tokenizer) for prompt in asked]
    prompts = encode(engine, texts, settings.max_new_tokens)
    for decode in all_methods(engine, model, dtype, temperature, WARM_UP).values():
        decode(prompts[0], 0)
    methods = all_methods(engine, model, dtype, temperature, settings.max_new_tokens)
    decoded = take_turns({name: timed(decode) for name, decode in methods.items()}, prompts)
    return {"methods": {name: [_figures(text) for text in own] for name, own in decoded.items()}}


def all_methods(
    engine: Engine, model: PreTrainedModel, dtype: str, temperature: float, max_new_tokens: int
) -> dict[str, DecodePrompt]:
    """Lists the methods by name, and `generate` with its other attention kernel where rounding may change texts."""
    methods = make_methods(engine, model, METHODS, temperature, max_new_tokens)
    if dtype != "float32" and not temperature:
        methods[OTHER_KERNEL] = partial(_by_other_kernel, model, max_new_tokens)
    return methods


def _by_other_kernel(model: PreTrainedModel, max_new_tokens: int, prompt: list[int], seed: int) -> DecodedText:
    usual = model.config._attn_implementation or "sdpa"
    model.set_attn_implementation("eager")
    try:
        return generate_counted(model, prompt, seed, {"max_new_tokens": max_new_tokens, "do_sample": False})
    finally:
        model.set_attn_implementation(usual)


def _figures(text: DecodedText) -> dict[str, Any]:
    return {
        "tokens": len(text.tokens),
        "steps": text.steps,
        "rows": text.rows,
        "seconds": round(text.seconds, 4),
        "digest": digest(text.tokens),
        "accepted": text.accepted,
        "proposed": text.proposed,
    }


def of_run(kept: Mapping[str, Figures], dtype: str, temperature: float) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The texts of one of RUNS, by category and method. kept: figures by the measurements' names."""
    prefix = run_name(dtype, temperature, "")
    return {name.removeprefix(prefix): figures["methods"] for name, figures in kept.items() if name.startswith(prefix)}
