"""The index of answers that some methods draft from: what it holds, and how long it takes to make.

It is made of the model's answers to prompts of the same categories, none of which is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import torch

from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.inputs import encode
from benchmarks.shared.report import progress
from launch.data.answers import AnswerCollector
from lp import Auto, Engine
from lp.drafting.answer_index import write_index

PART = "index"


def tasks(settings: RealModelSettings) -> list[Task]:
    return [Task(PART, "bfloat16", {**settings.index_facts, "threads": settings.threads}, partial(build, settings))]


def build(settings: RealModelSettings) -> Figures:
    """Writes the index to `settings.index`. Raises ValueError if the checkpoint cannot be used, OSError."""
    torch.set_num_threads(settings.threads)
    engine = Engine.from_pretrained(
        str(settings.model), "bfloat16", "cpu", compile=settings.compile, step_times="off", index="off"
    )
    collector = AnswerCollector(engine, Auto().candidates)
    vocabulary = range(engine.checkpoint.vocab_size)
    begin = time.perf_counter()
    for _ in collector.after_tokens(vocabulary):
        pass
    middle = time.perf_counter()
    texts = [prompt.for_model(engine.checkpoint.tokenizer) for prompt in settings.indexed]
    for prompt in progress(encode(engine, texts, settings.max_new_tokens), "index"):
        collector.along_text(prompt, settings.max_new_tokens)
    end = time.perf_counter()
    found = collector.found
    write_index(settings.index, engine.checkpoint.name, len(vocabulary), found.pairs, found.tokens)
    return {
        "num_texts": len(texts),
        "num_pairs": len(found.pairs),
        "num_tokens": len(found.tokens),
        "megabytes": round(settings.index.stat().st_size / 1e6, 1),
        "tokens_s": round(middle - begin, 1),
        "texts_s": round(end - middle, 1),
    }


def describe(kept: Mapping[str, Figures]) -> str:
    (figures,) = kept.values()
    return (
        f"The model's best tokens after each of {figures['num_tokens']:,} tokens ({figures['tokens_s']:.0f} s) and "
        f"after {figures['num_pairs']:,} pairs of tokens along its answers to {figures['num_texts']} other prompts of "
        f"the same categories ({figures['texts_s']:.0f} s): {figures['megabytes']:.1f} MB. Methods with an index draft "
        "from it; launch/index.py makes one."
    )
