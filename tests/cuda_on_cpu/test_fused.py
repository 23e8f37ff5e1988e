"""The fused forward on the emulated GPU: chosen, checked, captured and replayed, for all architectures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from lp import Engine, Lookahead, Sampling
from lp.kv_cache.arena import Arena
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode, make_fast
from lp.model.gpu import attention, stage
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.formula import in_triton
from lp.model.gpu.forward import FusedForward
from lp.model.kernels import LayerAttention
from tests.cuda_on_cpu.models import ARCHITECTURES, ROUNDING, error_of_graphs, fill_cache, load_on_gpu
from tests.models import EOS, SLIDING_WINDOW, generate_greedily
from tests.slow import slow_except

Folders = dict[str, Path]
FUSED = list(ARCHITECTURES)
# The interpreter takes long; all architectures are run without graphs in tests/lp/model/gpu/test_forward.py.


pytestmark = pytest.mark.usefixtures("two_rungs")


def forward_of(model: CausalModel) -> object:
    assert isinstance(model.fast, CapturedForward)
    return model.fast._forward


@pytest.mark.parametrize("name", slow_except(FUSED))
def test_graphs_of_fused_kernels_give_the_models_own_logits(name: str, folders: Folders, triton: None) -> None:
    """Sliding windows and soft-capping are in the graph, too."""
    model = load_on_gpu(folders[name])
    assert isinstance(forward_of(model), FusedForward)
    cache = model.make_cache(1)
    fill_cache(model, cache, SLIDING_WINDOW + 3)
    assert error_of_graphs(model, cache, 5) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_text_in_float32_is_that_of_generate(
    name: str, folders: Folders, reference_of: Callable[[str], PreTrainedModel], triton: None
) -> None:
    engine = Engine.from_pretrained(str(folders[name]), device="cuda", dtype="float32", compile="on", step_times="off")
    assert isinstance(forward_of(engine.checkpoint.model), FusedForward)
    prompt = [5, 9, 5, 9, 5]
    settings: Any = {"max_new_tokens": 8, "decode": Lookahead(2, 3, 2), "sampling": Sampling(0.0, seed=1)}
    found = engine.generate(prompt, **settings)
    assert found.token_ids == generate_greedily(reference_of(name), prompt, 8, [EOS])


def turn_the_other_way(patch: pytest.MonkeyPatch) -> None:
    """Rotary positions of the wrong sign."""
    patch.setattr(stage, "in_triton", lambda text: in_triton("{0}" if text == "-{0}" else text))


def drop_the_softcap(patch: pytest.MonkeyPatch) -> None:
    change(patch, lambda how: LayerAttention(how.scale, how.sliding_window, None))


def see_one_key_more(patch: pytest.MonkeyPatch) -> None:
    change(patch, lambda how: LayerAttention(how.scale, how.sliding_window and how.sliding_window + 1, how.softcap))


def change(patch: pytest.MonkeyPatch, changed: Callable[[LayerAttention], LayerAttention]) -> None:
    """Plants a fault in every layer's attention."""
    attend = attention.attend

    def faulty(step: Any, *others: Any) -> None:
        attend(replace(step, how=changed(step.how)), *others)

    patch.setattr("lp.model.gpu.forward.attend", faulty)


@pytest.mark.parametrize(
    ("name", "plant"),
    slow_except(
        [("llama", turn_the_other_way), ("gemma2", drop_the_softcap), ("mistral", see_one_key_more)],
    ),
    ids=lambda given: getattr(given, "__name__", given),
)
def test_the_check_at_start_finds_planted_faults(
    name: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    folders: Folders,
    triton: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    model = load_on_gpu(folders[name], CompileMode.off, "float32")
    with pytest.raises(ValueError, match=r"compile=on: .* gives other logits than the model itself"):
        make_fast(model, CompileMode.on, None)


@pytest.mark.slow
def test_invariant_kernels_are_chosen_where_they_are_demanded(folders: Folders, triton: None) -> None:
    model = load_on_gpu(folders["llama"])
    assert isinstance(model.memory, Arena) and not model.fast.is_invariant  # pyright: ignore[reportOptionalMemberAccess]
    engine = Engine.from_pretrained(
        str(folders["llama"]), device="cuda", dtype="bfloat16", invariant="on", step_times="off"
    )
    assert engine.checkpoint.model.fast and engine.checkpoint.model.fast.is_invariant
