"""Steps of which only the likeliest tokens are wanted, with an output embedding whose codes are split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lp.kv_cache.contiguous import ContiguousCache
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.make import SCREENING, make_native
from lp.model.fast_forward import SequenceRows
from lp.model.program.screen import screen_output
from lp.model.program.translate import MORE_ROWS, translate
from lp.model.quantization.quantize import Weights
from lp.model.quantization.split import SplitWeight
from lp.platform.processor import processor_features
from lp.tree import chain
from tests.lp.model.cpu.test_packed_forward import threads
from tests.models import save_checkpoint

# Not a multiple of the outputs that are packed together.
VOCAB = 3002
DTYPES = ("float32", "bfloat16")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": VOCAB}
needs_instructions = pytest.mark.skipif(SCREENING not in processor_features(), reason=f"needs {SCREENING}")
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(architecture: str = "llama", is_doubled: bool = False, **changes: object) -> Path:
        """is_doubled: whether each token's output is that of another token as well."""
        path = save_checkpoint(tmp_path / "model", architecture, **{**SIZES, "tie_word_embeddings": False, **changes})
        weights = load_file(path / "model.safetensors")
        generator = torch.Generator().manual_seed(5)
        head = torch.randn(VOCAB, SIZES["hidden_size"], generator=generator)
        head[:, :3] *= 20  # few inputs matter most, as in trained models
        if is_doubled:
            head[VOCAB // 2 :] = head[: VOCAB // 2]
        name = "model.embed_tokens.weight" if changes.get("tie_word_embeddings") else "lm_head.weight"
        save_file({**weights, name: head}, path / "model.safetensors", {"format": "pt"})
        return path

    return make


def native_of(path: Path, kept: Path, dtype: str) -> NativeForward:
    settings = ModelSettings(str(path), dtype, "cpu", weights=Weights.int8, compile=CompileMode.off)
    return make_native(load(settings).model, kept)


def logits_of(native: NativeForward, counts: list[int], seed: int, only_best: bool) -> Tensor:
    """Returns the logits of the last rows of some sequences, so many of each."""
    rng, given = np.random.default_rng(seed), []
    for count in counts:
        cache = ContiguousCache(native.num_layers, 8)
        cache.reserve(6)
        given.append(SequenceRows(chain(rng.integers(2, VOCAB, 6).tolist()), cache, count, only_best))
    return native(given).clone()


@needs_instructions
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_doubled", [False, True])
def test_the_best_token_is_that_of_all_logits(is_doubled: bool, dtype: str, make: Make, kept: Path) -> None:
    """The first of two tokens that are as likely is chosen."""
    native = native_of(make(is_doubled=is_doubled), kept, dtype)
    num_approximate = 0
    for seed in range(40):
        counts = [[1], [2], [1, 0, 1], [3, 1], [0, 6]][seed % 5]
        with threads(1 + seed % 3):
            every, best = (logits_of(native, counts, seed, only_best) for only_best in (False, True))
        assert torch.equal(best.argmax(dim=1), every.argmax(dim=1))
        assert torch.equal(best.amax(dim=1), every.amax(dim=1))
        if is_doubled:
            assert (every.argmax(dim=1) < VOCAB // 2).all()
        num_approximate += int((best != every).sum())
    assert num_approximate, "what cannot be the best is not computed in full"


@needs_instructions
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_that_needs_all_logits_gets_them(dtype: str, make: Make, kept: Path) -> None:
    """One sequence that needs them suffices for that, and a step of many rows computes all of them as well."""
    native = native_of(make(), kept, dtype)
    full = logits_of(native, [1, 1], 3, only_best=False)
    rng, given = np.random.default_rng(3), []
    for only_best in (True, False):
        cache = ContiguousCache(native.num_layers, 8)
        cache.reserve(6)
        given.append(SequenceRows(chain(rng.integers(2, VOCAB, 6).tolist()), cache, 1, only_best))
    assert torch.equal(native(given), full)
    assert torch.equal(*(logits_of(native, [6] * 3, 4, only_best) for only_best in (False, True)))


@needs_instructions
@pytest.mark.parametrize("dtype", DTYPES)
def test_split_codes_give_the_logits_of_whole_ones(
    dtype: str, make: Make, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make()
    split = native_of(path, kept, dtype)
    monkeypatch.setattr("lp.model.program.screen.LEAST_SHARE", 1.0)
    whole = native_of(path, kept, dtype)
    for counts in ([1], [3], [6], [6, 4], [6, 6, 6, 1]):
        assert torch.equal(logits_of(split, counts, 1, False), logits_of(whole, counts, 1, False))
    assert torch.equal(*(logits_of(whole, [1], 2, only_best) for only_best in (False, True)))


@pytest.mark.parametrize(
    ("architecture", "weights", "changes", "is_split"),
    [
        ("llama", Weights.int8, {}, True),
        ("llama", Weights.int8, {"tie_word_embeddings": True}, True),
        ("llama", Weights.int8, {"intermediate_size": 4096}, False),  # which have most of the bytes
        ("llama", Weights.int4, {}, True),  # which leaves the output embedding 8 bits
        ("llama", Weights.auto, {}, False),
        ("gemma2", Weights.int8, {"num_hidden_layers": 4}, False),  # its logits are capped
    ],
)
def test_output_embeddings_are_split_where_that_pays(
    architecture: str, weights: Weights, changes: dict[str, object], is_split: bool, make: Make
) -> None:
    settings = ModelSettings(
        str(make(architecture, **changes)), "bfloat16", "cpu", weights=weights, compile=CompileMode.off
    )
    program = translate(load(settings).model, MORE_ROWS)
    screen_output(program)
    found = [getattr(step, name, None) for step in program.steps for name in ("weight", "table")]
    split = [one for one in found if isinstance(one, SplitWeight)]
    assert len(split) == (is_split + (is_split and bool(changes)))
    assert all(one.num_outputs == VOCAB for one in split)


@needs_instructions
def test_what_is_not_a_number_is_seen(make: Make, kept: Path) -> None:
    settings = ModelSettings(str(make()), "float32", "cpu", weights=Weights.int8, compile=CompileMode.off)
    model = load(settings).model
    model.model.get_parameter("model.norm.weight").data[5] = torch.nan
    assert logits_of(make_native(model, kept), [2], 6, only_best=True).isnan().all()
