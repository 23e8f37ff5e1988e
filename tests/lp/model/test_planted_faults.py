"""The checks at start find every planted fault of tree attention, and of compiled code, in spite of rounding.

Faults are planted in models with random weights and in the trained demo model. Nothing that is right is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lp.model import attention, compilation
from lp.model.attention import TreeRows, TreeStep
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode, make_fast
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.fast_forward import FastForward, SequenceRows
from lp.model.kernels import AttentionKind, LayerAttention
from lp.model.probes import Probes, spread_probes, text_probes
from tests.models import ARCHITECTURES, SLIDING_WINDOW, save_checkpoint
from tests.slow import exhaustive_except, slow_except

DEMO = "demo/python-11m"
EVERY = ["llama", "mistral", "gemma2", "gemma3", "gpt2", "mixtral", DEMO]
DTYPES, WINDOWED = ["float32", "bfloat16"], ["mistral", "gemma2", "gemma3"]
# Models with so short a window that one key more or less stands out from the rounding of 16 bits.
SHORT_WINDOWED = ["mistral, window 8", "gemma2, window 8", "gemma3, window 8"]

ToDevice = Callable[[CausalModel, Sequence[SequenceRows]], tuple[TreeStep, Tensor]]
Plant = Callable[[pytest.MonkeyPatch], None]


def in_steps(change: Callable[[TreeRows], None]) -> Plant:
    """Plants a change in every step with a branching tree."""
    to_device: ToDevice = CausalModel.to_device

    def changed(self: CausalModel, given: Sequence[SequenceRows]) -> tuple[TreeStep, Tensor]:
        step, tokens = to_device(self, given)
        for rows in step.parts:
            if rows.cached:
                change(rows)
        return step, tokens

    return lambda patch: patch.setattr(CausalModel, "to_device", changed)


def see_a_sibling(step: TreeRows) -> None:
    step.visibility[2, 1] = True


def miss_the_parent(step: TreeRows) -> None:
    step.visibility[3, 1] = False


def see_a_later_row(step: TreeRows) -> None:
    step.visibility[0, 1] = True


def count_rows_as_positions(step: TreeRows) -> None:
    step.positions = step.cached + torch.arange(len(step.positions))


def stand_one_place_late(step: TreeRows) -> None:
    step.positions = step.positions + 1


Arguments = tuple[Tensor, Tensor, Tensor, Tensor, LayerAttention]


def in_layers(change: Callable[[Tensor, Tensor, Tensor, Tensor, LayerAttention], Arguments]) -> Plant:
    """Plants a change of the query, key, value, mask and settings that attention is given."""
    attend = attention.attend

    def changed(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kind: AttentionKind, how: LayerAttention
    ) -> Tensor:
        query, key, value, mask, how = change(query, key, value, mask, how)
        return attend(query, key, value, mask, kind, how)

    return lambda patch: patch.setattr(attention, "attend", changed)


def without_key(place: int) -> Callable[..., Arguments]:
    """Leaves out one key of the prefix, in layers that see the whole of it."""

    def change(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: LayerAttention) -> Arguments:
        num_before = key.shape[2] - mask.shape[1]
        if num_before:
            kept = [number for number in range(key.shape[2]) if number != place % num_before]
            key, value = key[:, :, kept], value[:, :, kept]
        return query, key, value, mask, how

    return change


def without_softcap(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: LayerAttention) -> Arguments:
    return query, key, value, mask, replace(how, softcap=None)


def without_sinks(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, how: LayerAttention) -> Arguments:
    return query, key, value, mask, replace(how, sinks=None)


def with_window(difference: int | None) -> Plant:
    """Plants masks of a longer or shorter window. None plants those of full attention."""
    own = TreeRows.mask

    def changed(self: TreeRows, how: LayerAttention, group: int) -> Tensor:
        if how.sliding_window is None:
            return own(self, how, group)
        window = 1 << 20 if difference is None else how.sliding_window + difference
        return own(self, replace(how, sliding_window=window), group)

    return lambda patch: patch.setattr(TreeRows, "mask", changed)


FAULTS: dict[str, tuple[Plant, list[str]]] = {
    "sees a sibling": (in_steps(see_a_sibling), EVERY),
    "misses the parent": (in_steps(miss_the_parent), EVERY),
    "sees a later row": (in_steps(see_a_later_row), EVERY),
    "positions by row": (in_steps(count_rows_as_positions), EVERY),
    "positions one too far": (in_steps(stand_one_place_late), EVERY),
    "prefix without its last token": (in_layers(without_key(-1)), ["llama", "gemma2", "gemma3", "gpt2", DEMO]),
    "prefix without its first token": (in_layers(without_key(0)), ["llama", "gemma2", "gemma3", "gpt2", DEMO]),
    "no softcap": (in_layers(without_softcap), ["gemma2"]),
    "no sinks": (in_layers(without_sinks), ["gpt_oss"]),
    "no window": (with_window(None), WINDOWED),
    "window one too long": (with_window(1), SHORT_WINDOWED),
    "window one too short": (with_window(-1), SHORT_WINDOWED),
}
PLANTED = [(fault, model) for fault, (_, models) in FAULTS.items() for model in models]
# Every fault in one or two models, and one fault in the trained model.
QUICKLY_FOUND = [
    (fault, model) for fault, model in PLANTED if model in ("llama", "gemma3, window 8") or fault == "no softcap"
] + [("sees a sibling", DEMO)]
# All others are found by `make test-slow` in one format each, and in the other by `make test-exhaustive`.
OTHERS = [planted for planted in PLANTED if planted not in QUICKLY_FOUND]


@pytest.fixture
def load_own(
    checkpoint_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[CausalModel, Probes]]:
    """A model by its name and dtype, not compiled, with the probes that it was checked with."""

    def load_own(name: str, dtype: str) -> tuple[CausalModel, Probes]:
        architecture, _, window = name.partition(", window ")
        if window:
            path = save_checkpoint(tmp_path_factory.mktemp("short"), architecture, sliding_window=int(window))
        else:
            path = DEMO if name == DEMO else checkpoint_folder(name)
        checkpoint = load(ModelSettings(str(path), dtype, device="cpu", compile=CompileMode.off))
        return checkpoint.model, text_probes(checkpoint.tokenizer)

    return load_own


@pytest.mark.parametrize(
    ("fault", "name", "dtype"),
    exhaustive_except(
        [(*planted, dtype) for planted in PLANTED for dtype in DTYPES],
        *((*planted, DTYPES[number % 2]) for number, planted in enumerate(OTHERS)),
        quick=[(*planted, dtype) for planted in QUICKLY_FOUND for dtype in DTYPES],
    ),
)
def test_faults_of_tree_attention_are_found(
    fault: str, name: str, dtype: str, load_own: Callable[[str, str], tuple[CausalModel, Probes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model, texts = load_own(name, dtype)
    FAULTS[fault][0](monkeypatch)
    for probes in (texts, spread_probes(model.vocab_size)):
        with pytest.raises(UnsupportedArchitecture, match=r"\(relative error .*; rounding explains up to .*\)"):
            check_tree(model, probes)


def other_layer(model: CausalModel) -> None:
    """Changes a layer's weights, as a fine-tuned checkpoint of the same name has."""
    weight = model.model.get_submodule("model.layers.1.mlp").get_parameter("down_proj.weight")
    with torch.no_grad():
        weight.copy_(weight.roll(1, dims=0))


def other_head(model: CausalModel) -> None:
    with torch.no_grad():
        model.model.get_output_embeddings().weight.mul_(-1)  # pyright: ignore[reportCallIssue, reportOptionalMemberAccess]


def no_softcap(model: CausalModel) -> None:
    for module in model.model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            vars(module)["attn_logit_softcapping"] = None


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("difference", [1, -1])
def test_one_key_of_a_longer_window_is_found_in_float32(
    difference: int, name: str, load_own: Callable[[str, str], tuple[CausalModel, Probes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model, texts = load_own(name, "float32")
    with_window(difference)(monkeypatch)
    with pytest.raises(UnsupportedArchitecture, match="other logits"):
        check_tree(model, texts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("stale", "name"),
    slow_except(
        [
            (other_layer, "llama"),
            (other_layer, DEMO),
            (other_head, "llama"),
            (other_layer, "gemma2"),
            (no_softcap, "gemma2"),
        ],
        (other_layer, "llama"),
        (other_head, "llama"),
        (no_softcap, "gemma2"),
    ),
)
def test_stale_compiled_code_is_found(
    stale: Callable[[CausalModel], None], name: str, dtype: str,
    load_own: Callable[[str, str], tuple[CausalModel, Probes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The wrong forward for one row, for more rows, or for both; the right ones pass."""
    model, _ = load_own(name, dtype)
    other, _ = load_own(name, dtype)
    stale(other)

    def compiles_to(one_row: CausalModel, any_rows: CausalModel) -> None:
        one_row.memory = any_rows.memory = model.memory
        monkeypatch.setattr(compilation, "make_native", lambda model, folder, is_checked: Stale(one_row, any_rows))

    for one_row, any_rows in ((other, other), (other, model), (model, other)):
        compiles_to(one_row, any_rows)
        with pytest.raises(ValueError, match=r"compile=on: .* \(relative error .*; rounding .*use model\.compile=off"):
            make_fast(model, CompileMode.on, tmp_path)
    compiles_to(model, model)
    make_fast(model, CompileMode.on, tmp_path)
    assert model.fast is not None


class Stale(FastForward):
    """Computes what other models do."""

    def __init__(self, one_row: CausalModel, any_rows: CausalModel):
        self.models = one_row, any_rows

    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        (rows,) = given
        return self.models[len(rows.tree) > 1].forward_eager(given)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_nonsense_is_found_even_if_every_kernel_gives_it(
    answer: float, dtype: str, load_own: Callable[[str, str], tuple[CausalModel, Probes]]
) -> None:
    model, texts = load_own("llama", dtype)
    with torch.no_grad():
        model.model.get_submodule("model.norm").get_parameter("weight")[3] = answer
    with pytest.raises(UnsupportedArchitecture, match="relative error inf"):
        check_tree(model, texts)


def two_layers(architecture: str) -> dict[str, Any]:
    if architecture in ("gemma2", "gemma3", "gpt_oss"):
        return {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    return {} if architecture == "gpt2" else {"num_hidden_layers": 2}


QUICKLY_PASSED = ("llama", "gemma2", "mixtral")
RIGHT: list[tuple[str, dict[str, Any]]] = [
    *((architecture, two_layers(architecture)) for architecture in ARCHITECTURES),
    ("llama", {"num_hidden_layers": 30}),
    ("gemma2", {"num_hidden_layers": 30, "layer_types": ["sliding_attention", "full_attention"] * 15}),
]
FORMATS = ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize(
    ("architecture", "changes", "dtype"),
    exhaustive_except(
        [(*right, dtype) for right in RIGHT for dtype in FORMATS],
        *((*right, FORMATS[number % 3]) for number, right in enumerate(RIGHT) if right[0] not in QUICKLY_PASSED),
        *((*right, FORMATS[1]) for right in RIGHT[-2:]),
        quick=[(name, two_layers(name), dtype) for name in QUICKLY_PASSED for dtype in FORMATS],
    ),
)
def test_right_models_pass(architecture: str, changes: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = save_checkpoint(tmp_path / str(seed), architecture, seed, **changes)
        model = load(ModelSettings(str(folder), dtype, device="cpu")).model  # with probes of text
        check_tree(model)  # with made-up ones


def test_a_window_that_attention_is_told_wrongly_is_found(
    load_own: Callable[[str, str], tuple[CausalModel, Probes]],
) -> None:
    model, texts = load_own("gemma2", "float32")
    vars(model.model.get_submodule("model.layers.0.self_attn"))["sliding_window"] = 4096
    with pytest.raises(UnsupportedArchitecture, match=f"window of {SLIDING_WINDOW} tokens but tells .* 4096"):
        check_tree(model, texts)
