"""Tiny models on the emulated GPU, in half precision and with graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.fast_forward import SequenceRows
from lp.model.reference import relative_error
from lp.tree import chain
from tests.lp.test_tree import random_tree

ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "olmo2", "qwen3_moe")

# The graphs of tests.
LADDER = (1, 2, 8, 16)

# Rounding in bfloat16 moves the logits of the tiny models by a few percent; a fault moves them by about their norm.
ROUNDING = 0.15


def load_on_gpu(
    folder: Path, compile: CompileMode = CompileMode.on, dtype: str = "bfloat16", device: str = "cuda:0"
) -> CausalModel:
    return load(ModelSettings(str(folder), dtype, device, compile=compile)).model


def fill_cache(model: CausalModel, cache: KVCache, num_tokens: int) -> None:
    """Fills a cache up to this number of tokens."""
    if missing := num_tokens - cache.length:
        model.forward(chain([(7 * n + 3) % 290 + 2 for n in range(missing)]), cache, 1)
        cache.keep(range(missing))


def error_of_graphs(model: CausalModel, cache: KVCache, num_rows: int) -> float:
    """How far a step's logits by the fast forward are from those of the model's own."""
    tree = random_tree(np.random.default_rng(num_rows), num_rows)
    found: Tensor = model.forward(tree, cache, num_rows)
    own, _ = model.forward_eager([SequenceRows(tree, cache, num_rows)])
    return relative_error(found.cpu(), own.cpu())
