"""A second model with the main one: what is loaded, what both may hold, and which models are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lp import Engine
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import Checkpoint, ModelSettings, load
from lp.model.errors import CheckpointError
from lp.model.second_model import SecondModel, SecondModelExtension
from lp.tree import chain
from tests.models import SIZES, build_tokenizer, generate_greedily, load_reference, save_checkpoint

FolderOf = Callable[[str], Path]
PROMPT = [5, 9, 11, 7]


def load_both(first: Path, second: SecondModel, kv_memory: str = "auto") -> Checkpoint:
    settings = ModelSettings(str(first), device="cpu", kv_memory=kv_memory)
    return load(settings, extensions=[SecondModelExtension("draft", second)])


def best_token(checkpoint: Checkpoint, role: str) -> int:
    model = checkpoint.extensions[role].model
    assert model is not None
    return int(model.forward(chain(PROMPT), model.make_cache(8), 1).argmax())


def test_second_checkpoint_is_run_with_the_main_one(checkpoint_folder: FolderOf) -> None:
    checkpoint = load_both(checkpoint_folder("llama"), SecondModel(str(checkpoint_folder("qwen2"))))
    second = checkpoint.extensions["draft"].model
    assert (second.device, second.dtype) == (checkpoint.model.device, checkpoint.model.dtype)
    expected = generate_greedily(load_reference(checkpoint_folder("qwen2")), PROMPT, 1)
    assert best_token(checkpoint, "draft") == expected[0]


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_first_layers_of_the_model_itself(checkpoint_folder: FolderOf, architecture: str) -> None:
    reference = load_reference(checkpoint_folder(architecture))
    inner = reference.base_model
    name = "h" if architecture == "gpt2" else "layers"
    setattr(inner, name, getattr(inner, name)[:1])
    reference.config.num_hidden_layers = 1
    checkpoint = load_both(checkpoint_folder(architecture), SecondModel(layers=1))
    assert len(checkpoint.extensions["draft"].model.layers) == 1 < len(checkpoint.model.layers)
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT])).logits[0, -1].argmax()
    assert best_token(checkpoint, "draft") == int(expected)


def test_first_layers_of_layers_that_share_keys_are_refused(checkpoint_folder: FolderOf) -> None:
    with pytest.raises(ValueError, match=r"draft\.layers=2: the model's layers share .* another model by draft\.path"):
        load_both(checkpoint_folder("gemma4"), SecondModel(layers=2))


def test_both_hold_as_many_tokens_within_one_bound(checkpoint_folder: FolderOf) -> None:
    folder = checkpoint_folder("llama")
    alone = load(ModelSettings(str(folder), device="cpu", kv_memory="0.002")).model
    both = load_both(folder, SecondModel(layers=1), "0.002")
    draft = both.extensions["draft"].model
    assert draft.memory.num_pages == both.model.memory.num_pages
    own, of_draft = both.model.numbers_per_token, draft.numbers_per_token
    assert abs(both.model.memory.num_pages - alone.memory.num_pages * own / (own + of_draft)) <= 1


def test_padded_weights_are_the_same_vocabulary(checkpoint_folder: FolderOf, tmp_path: Path) -> None:
    padded = save_checkpoint(tmp_path / "padded", vocab_size=SIZES["vocab_size"] + 20)
    checkpoint = load_both(checkpoint_folder("llama"), SecondModel(str(padded)))
    assert checkpoint.extensions["draft"].model.vocab_size == SIZES["vocab_size"] + 20


def test_another_vocabulary_is_refused_by_the_names_of_both(checkpoint_folder: FolderOf, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint_folder("llama"), other)
    build_tokenizer(270).save_pretrained(other)
    with pytest.raises(CheckpointError, match=r"draft\.path.*other.*270 tokens.*llama.*first differ at id") as error:
        load_both(checkpoint_folder("llama"), SecondModel(str(other)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SecondModel("nowhere/at/all"), r"draft\.path=nowhere/at/all: .* is not a folder"),
        (SecondModel(layers=3), r"draft\.layers=3 must be fewer than .* has 3; give from 1 to 2"),
        (SecondModel(layers=-1), r"draft\.layers=-1"),
        (SecondModel("somewhere", 2), r"draft\.path=somewhere and draft\.layers=2 both name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(checkpoint_folder: FolderOf, second: SecondModel, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_both(checkpoint_folder("llama"), second)


def test_an_engine_without_one_loads_none(llama: Engine) -> None:
    assert not llama.checkpoint.extensions
    assert not EngineSettings().second_models(holds_all=True)
