"""Parts of a checkpoint: they equal what transformers reads, nothing else is read, and errors name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.memory import num_weight_bytes
from lp.model.quantization.model import empty_model
from lp.model.weight_files import Shard
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.sharding.weights import fill
from tests.models import load_reference, save_checkpoint
from tests.parallel.ranks import run_ranks

CPU = torch.device("cpu")
SINGLE = "model.safetensors"
UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def read(folder: Path, dtype: torch.dtype = torch.float32, shards: dict[str, Shard] | None = None) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder)
    model = empty_model(config, dtype)
    fill(model, str(folder), config, dtype, CPU, shards)
    return model


def assert_same(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    """All parameters and buffers must be equal to the bit."""
    for kind in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(found, kind)()), dict(getattr(expected, kind)())
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype, name
            assert torch.equal(tensor, theirs[name]), name


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE, {"format": "pt"})


def split_files(folder: Path) -> dict[str, str]:
    """Saves the checkpoint again in several files. Returns their index."""
    load_reference(folder).save_pretrained(folder, max_shard_size="10KB")
    (folder / SINGLE).unlink()
    return json.loads((folder / f"{SINGLE}.index.json").read_text())["weight_map"]


@pytest.mark.parametrize(
    "architecture", ["llama", "gemma2", "gemma3", "starcoder2", "phi3", "gpt2", "gpt_neox", "mixtral", "qwen3_moe"]
)
@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_model_equals_what_transformers_reads(architecture: str, tied: bool, tmp_path: Path) -> None:
    """The head of gpt_neox is in the file under a name that transformers has since changed."""
    folder = save_checkpoint(tmp_path, architecture, tie_word_embeddings=tied)
    found = read(folder)
    assert_same(found, load_reference(folder))
    embedding, head = found.get_input_embeddings(), found.get_output_embeddings()
    assert embedding is not None and head is not None
    assert (embedding.weight is head.weight) == tied


def test_weights_are_converted_to_another_dtype(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    assert_same(
        read(folder, torch.bfloat16),
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager"),
    )


def test_shards_have_memory_of_their_own(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    whole = load_reference(folder)
    model = read(folder, shards={UP: Shard(0, (range(16, 32),)), DOWN: Shard(1, (range(48, 64),))})
    for name, dim, index in ((UP, 0, 1), (DOWN, 1, 3)):
        found = model.get_parameter(name)
        assert torch.equal(found, whole.get_parameter(name).chunk(4, dim)[index])
        assert found.is_contiguous()
        assert found.untyped_storage().nbytes() == found.nbytes


def test_a_checkpoint_of_several_files_is_read(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    assert len(set(split_files(folder).values())) > 4
    (folder / "consolidated.safetensors").write_bytes(b"another format of the same weights")
    assert_same(read(folder), load_reference(folder))


def test_only_files_with_wanted_tensors_are_read(tmp_path: Path) -> None:
    """The file of a layer that was removed from the model may be missing."""
    folder = save_checkpoint(tmp_path)
    index = split_files(folder)
    expected = load_reference(folder)
    of_layer = {file for name, file in index.items() if name.startswith("model.layers.2.")}
    elsewhere = {file for name, file in index.items() if not name.startswith("model.layers.2.")}
    for file in of_layer - elsewhere:
        (folder / file).unlink()
    assert of_layer - elsewhere
    model = empty_model(AutoConfig.from_pretrained(folder), torch.float32)
    for part in (model, expected):
        part.set_submodule("model.layers.2", torch.nn.Identity())
    fill(model, str(folder), model.config, torch.float32, CPU)
    assert_same(model, expected)


@pytest.mark.parametrize("tied", [False, True])
def test_names_may_lack_the_prefix_of_the_base_model(tied: bool, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, tie_word_embeddings=tied)
    expected = load_reference(folder)
    change_weights(folder, drop_prefix)
    assert UP.removeprefix("model.") in load_file(folder / SINGLE)
    assert_same(read(folder), expected)


def drop_prefix(weights: dict[str, Tensor]) -> None:
    for name in list(weights):
        weights[name.removeprefix("model.")] = weights.pop(name)


def test_a_tied_head_without_the_embedding_finds_its_weights(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, tie_word_embeddings=True)
    expected = load_reference(folder)
    for change in (lambda weights: None, drop_prefix):
        change_weights(folder, change)
        model = empty_model(AutoConfig.from_pretrained(folder), torch.float32)
        model.set_submodule("model.embed_tokens", torch.nn.Identity())
        fill(model, str(folder), model.config, torch.float32, CPU)
        assert torch.equal(model.get_parameter("lm_head.weight"), expected.get_parameter("lm_head.weight"))


@pytest.mark.parametrize("stored", ["the head alone", "both, equal", "both, different"])
def test_tied_weights_may_be_stored_in_other_ways(stored: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, tie_word_embeddings=True)

    def change(weights: dict[str, Tensor]) -> None:
        embedding = weights["model.embed_tokens.weight"]
        weights["lm_head.weight"] = embedding.flip(0) if "different" in stored else embedding.clone()
        if "alone" in stored:
            del weights["model.embed_tokens.weight"]

    change_weights(folder, change)
    found = read(folder)
    assert_same(found, load_reference(folder))
    shared = found.get_parameter("lm_head.weight") is found.get_parameter("model.embed_tokens.weight")
    assert shared == ("different" not in stored)


def test_a_hub_id_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "models--somebody--tiny"
    folder = save_checkpoint(cached / "snapshots" / "0123abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abc")
    expected = load_reference(folder)
    model = empty_model(AutoConfig.from_pretrained(folder), torch.float32)
    for several in (False, True):
        if several:
            split_files(folder)
        fill(model, "somebody/tiny", model.config, torch.float32, CPU)
        assert_same(model, expected)
    with pytest.raises(CheckpointError, match=r"of 'somebody/other' cannot be read: "):
        fill(model, "somebody/other", model.config, torch.float32, CPU)


def growth(mesh: Mesh, channel: Channel, folder: str) -> tuple[int, int]:
    """Bytes by which this process grew while it read a quarter of all matrices, and bytes of that quarter."""
    torch.set_num_threads(1)
    model = empty_model(AutoConfig.from_pretrained(folder), torch.float32)
    heights = {name: len(parameter) for name, parameter in model.named_parameters() if parameter.dim() == 2}
    before = psutil.Process().memory_info()
    fill(
        model,
        folder,
        model.config,
        torch.float32,
        CPU,
        {name: Shard(0, (range(height // 4, height // 2),)) for name, height in heights.items()},
    )
    after = psutil.Process().memory_info()
    return (after.rss - after.shared) - (before.rss - before.shared), num_weight_bytes(model)


def test_reading_a_part_takes_little_more_memory_than_the_part(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, hidden_size=512, intermediate_size=2048, num_hidden_layers=4)
    whole = (folder / SINGLE).stat().st_size
    assert whole > 55e6
    grown, held = run_ranks(growth, 1, str(folder))[0]
    assert held < 0.26 * whole
    assert grown < 1.2 * held


def refusal(folder: Path) -> str:
    """The message of the error with which the checkpoint is refused: one short line."""
    with pytest.raises(CheckpointError) as raised:
        read(folder)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 500
    return message


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    change_weights(folder, lambda weights: weights.pop(UP))
    assert f"have no tensor {UP}. " in refusal(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    change_weights(folder, lambda weights: weights.update({UP: torch.zeros(3, 32)}))
    assert f"do not fit its config.json: {UP} has shape [3, 32], not [64, 32]" in refusal(folder)


def test_a_missing_expert_is_told(tmp_path: Path) -> None:
    """The file has a matrix for each expert, and the model one tensor for all experts."""
    folder = save_checkpoint(tmp_path, "mixtral")
    gone = next(name for name in load_file(folder / SINGLE) if "layers.1" in name and "experts.2.w2" in name)
    change_weights(folder, lambda weights: weights.pop(gone))
    assert "do not fit its config.json: there are 3 experts as model.layers.1." in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, None])
def test_a_broken_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    file = sorted(set(split_files(folder).values()))[1]
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    assert f"{file} of '{folder}' cannot be read: " in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_named(text: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    split_files(folder)
    (folder / f"{SINGLE}.index.json").write_text(text)
    assert f"{SINGLE}.index.json of '{folder}' cannot be read: " in refusal(folder)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    (folder / SINGLE).rename(folder / "other.safetensors")
    assert f"cannot be read: [Errno 2] No such file or directory: '{folder}/{SINGLE}.index.json'" in refusal(folder)
