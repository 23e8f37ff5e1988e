"""The model whose steps are measured: a checkpoint, or random weights of a shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from benchmarks.shared.random_weights import TOKENIZER, check_room, make_model, quantize_model
from benchmarks.shared.shapes import read_config
from lp.grammar.settings import GrammarBackend
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, Checkpoint, ModelSettings, load, pick_device
from lp.model.compilation import CompileMode
from lp.model.exactness import check_config, check_tree
from lp.model.memory import AUTO, find_bound
from lp.model.quantization.quantize import Weights
from lp.platform import disk_cache


@contextmanager
def load_measured(path: str, dtype: str, device: str, num_positions: int) -> Iterator[tuple[Checkpoint, Path]]:
    """A checkpoint, not compiled yet, and the folder that keeps its compiled code for later runs.

    Raises ValueError if the checkpoint cannot be used or has fewer than `num_positions` positions.
    """
    checkpoint = load(ModelSettings(path, dtype, device, compile=CompileMode.off))
    if num_positions > (most := checkpoint.max_length):
        raise ValueError(
            f"--cached and --rows ask for {num_positions} positions, but {path!r} has {most}: lower them, or give its "
            "config.json as --config"
        )
    with TemporaryDirectory() as temporary:
        yield checkpoint, disk_cache.folder("compiled") or Path(temporary)


@contextmanager
def make_measured(
    shape: str, dtype: str, device: str, num_positions: int, num_cached: int, num_compiled: int,
    weights: Weights = Weights.auto,
) -> Iterator[tuple[Checkpoint, Path]]:  # fmt: skip
    """A model with random weights and the demo model's tokenizer, and a temporary folder for its compiled code.

    weights: int8 and int4 quantise them, on the device.
    Ends the program if the model does not fit the device together with caches of `num_cached` tokens in all and, on a
    CPU, `num_compiled` compiled forwards, which each pack the weights twice: for one row and for more.
    Raises ValueError if the architecture cannot be used.
    """
    config, on = read_config(shape), pick_device(device)
    check_config(config)
    text: Any = config.get_text_config(decoder=True)
    text.max_position_embeddings = max(text.max_position_embeddings, num_positions)  # random weights know no limit
    check_room(config, DTYPES[dtype], on, num_cached, 1 + (2 * num_compiled if on.type == "cpu" else 0))
    max_length = text.max_position_embeddings
    made = make_model(config, DTYPES[dtype], on)
    if weights is not Weights.auto:
        quantize_model(made, weights)
    model = CausalModel(made, max_length, eos=[])
    check_tree(model)
    model.bound_memory(find_bound(AUTO, model.device))
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    with TemporaryDirectory() as temporary:
        name = Path(shape).name.removesuffix(".json")
        yield (
            Checkpoint(
                name, shape, config, tokenizer, GenerationConfig(), max_length, [], GrammarBackend.auto, model=model
            ),
            Path(temporary),
        )
