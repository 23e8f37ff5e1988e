"""Good checkpoints are loaded; each bad one is refused with one line that says why."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config

from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.model.checkpoint import ModelSettings, load, pick_dtype
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.errors import CheckpointError
from tests.models import CONTEXT, EOS, VOCAB_SIZE, build_tokenizer, save_checkpoint
from tests.slow import slow_except


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a good checkpoint, for a test to break."""
    return shutil.copytree(checkpoint_folder("llama"), tmp_path / "checkpoint")


def refusal(path: Path | str, **settings: Any) -> str:
    """The one-line message with which a checkpoint is refused."""
    with pytest.raises(ValueError) as raised:
        load(ModelSettings(path=str(path), **{"device": "cpu", **settings}))
    message = str(raised.value)
    assert "\n" not in message and len(message) < 500
    return message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_a_good_checkpoint_is_loaded(folder: Path) -> None:
    checkpoint = load(ModelSettings(path=str(folder), device="cpu"))
    assert checkpoint.name == "checkpoint"
    assert checkpoint.model.max_length == CONTEXT
    assert checkpoint.model.vocab_size == VOCAB_SIZE
    assert checkpoint.model.eos == [EOS]
    assert checkpoint.model.dtype == torch.float32
    assert checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("def f():")) == "def f():"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a folder; give a checkpoint's folder, a GGUF file or a hub id" in refusal(tmp_path / "none")
    assert "is not a folder" in refusal("./none")
    assert "is not a folder" in refusal("tests/none")


def test_a_hub_that_cannot_be_reached_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match=r"'no/such-model' is neither a folder .* 127\.0\.0\.1 cannot"):
        read_checkpoint_info("no/such-model")
    assert time.monotonic() - begun < 5


def test_a_name_that_is_no_folder_is_taken_for_a_hub_id() -> None:
    for name in ("none", "nobody/none"):
        message = refusal(name)  # where the hub can be reached, it is asked
        assert f"'{name}'" in message and ("cannot be used: " in message or "cannot be reached: " in message)


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json: it is not a Hugging Face checkpoint folder" in refusal(folder)


def test_a_file_is_not_a_folder(folder: Path) -> None:
    assert "is not a folder" in refusal(folder / "config.json")


@pytest.mark.parametrize("text", ['{"model_type": "lla', "[1]", "{}", ""])
def test_a_broken_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "the configuration of" in refusal(folder)


@pytest.mark.parametrize("changes", [{"hidden_size": 33}, {"hidden_size": "wide"}, {"model_type": "frobnicate"}])
def test_a_config_that_makes_no_sense(folder: Path, changes: dict[str, Any]) -> None:
    change_config(folder, **changes)
    message = refusal(folder)
    assert "the configuration of" in message
    assert str(next(iter(changes.values()))) in message


def test_remote_code_is_not_run(folder: Path) -> None:
    (folder / "code.py").write_text("raise SystemExit('was run')")
    change_config(folder, model_type="custom", auto_map={"AutoConfig": "code.A", "AutoModelForCausalLM": "code.B"})
    assert "custom code" in refusal(folder)


def test_pickle_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "found only pytorch_model.bin, which is pickle; convert the weights to safetensors" in refusal(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "it holds no weights" in refusal(folder)


@pytest.mark.parametrize("broken", ["truncated", "empty", "garbage"])
def test_broken_weights(folder: Path, broken: str) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "garbage": b"x" * 1000}[broken])
    assert f"the model '{folder}' cannot be loaded: Error while deserializing header" in refusal(folder)


def test_a_missing_weight_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    assert "do not fit its config.json: missing keys model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_a_weight_of_another_shape_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}))
    message = refusal(folder)
    assert "do not fit its config.json: mismatched keys" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_a_tokenizer_that_is_missing_or_broken(folder: Path, text: str | None) -> None:
    path = folder / "tokenizer.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert f"the tokenizer of '{folder}' cannot be loaded" in refusal(folder)


def test_an_encoder_decoder(tmp_path: Path) -> None:
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert refusal(tmp_path).startswith("T5ForConditionalGeneration is an encoder-decoder; only decoder-only models")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float8"}, "dtype='float8' is unknown; use auto, float32, bfloat16, float16"),
        ({"device": "tpu"}, "device='tpu' is unknown; use auto, cpu or cuda"),
        ({"device": "mps"}, "device='mps' is not supported; use auto, cpu or cuda"),
        ({"device": "cuda:99"}, "device='cuda:99' is not there: torch sees"),
        ({"max_length": 1}, f"model.max_length=1 must be from 2 to the model's own limit of {CONTEXT} tokens"),
        ({"max_length": CONTEXT + 1}, f"model.max_length={CONTEXT + 1} must be from 2 to"),
    ],
)
def test_settings_out_of_range_are_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    assert message in refusal(folder, **settings)


def test_a_shorter_context_can_be_asked_for(folder: Path) -> None:
    assert load(ModelSettings(path=str(folder), device="cpu", max_length=50)).model.max_length == 50


@pytest.mark.parametrize("nested", [False, True])
def test_rotary_angles_that_shift_bound_the_context(tmp_path: Path, nested: bool) -> None:
    """Beyond the original context the angles depend on the length of the whole text, so cached keys would be wrong."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 128,
    }
    if nested:
        plain = {"rope_type": "default", "rope_theta": 10_000.0}
        changes = {"rope_parameters": {"full_attention": rope, "sliding_attention": plain}}
        folder = save_checkpoint(tmp_path, "gemma3", **changes)
    else:
        folder = save_checkpoint(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=128)
    assert load(ModelSettings(path=str(folder), device="cpu")).model.max_length == 128


def test_several_end_of_sequence_tokens(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load(ModelSettings(path=str(folder), device="cpu")).model.eos == [5, 6]


def test_generation_defaults_are_read(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.4, "top_k": 3}))
    engine = Engine.from_pretrained(str(folder), device="cpu")
    sampling = engine.request_builder.build("a").sampling
    assert (sampling.temperature, sampling.top_k) == (0.4, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", slow_except(["llama", "gemma2", "gpt2", "mixtral"], "llama", "gpt2"))
def test_half_precision_loads_and_runs(architecture: str, dtype: str, checkpoint_folder: Callable[[str], Path]) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder(architecture)), dtype=dtype, device="cpu")
    assert engine.checkpoint.model.dtype == getattr(torch, dtype)
    for how in (Autoregressive(), Lookahead(5, 3, 5)):
        completion = engine.generate("def f(x):", max_new_tokens=12, decode=how, sampling=Sampling(logprobs=1))
        assert completion.stats.tokens >= 1
        assert completion.logprobs is not None and all(found.logprob <= 0 for found in completion.logprobs)


def test_a_tokenizer_larger_than_the_model_is_noticed_in_the_prompt(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "llama", vocab_size=40)
    build_tokenizer().save_pretrained(folder)
    engine = Engine.from_pretrained(str(folder), device="cpu")
    with pytest.raises(ValueError, match="ids are integers from 0 to 39"):
        engine.generate("xyz")


def test_a_home_folder_is_expanded(checkpoint_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").symlink_to(checkpoint_folder("llama"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(ModelSettings(path="~/model", device="cpu")).name == "model"


def test_generation_settings_that_are_not_applied_are_named(
    checkpoint_folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(checkpoint_folder("llama"), tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": [5], "min_length": 9}))
    load(ModelSettings(path=str(folder), device="cpu"))
    assert "sets min_length, suppress_tokens, not applied here" in caplog.text


@pytest.mark.parametrize(
    ("asked", "device", "own", "expected"),
    [
        ("auto", "cpu", torch.bfloat16, torch.float32),
        ("auto", "cuda", torch.bfloat16, torch.bfloat16),
        ("auto", "cuda", torch.float16, torch.float16),
        ("auto", "cuda", None, torch.float32),
        ("auto", "cuda", torch.float64, torch.float32),
        ("float32", "cuda", torch.bfloat16, torch.float32),
        ("bfloat16", "cpu", torch.float32, torch.bfloat16),
    ],
)
def test_a_dtype_fits_the_device(
    asked: str, device: str, own: torch.dtype | None, expected: torch.dtype, checkpoint_folder: Callable[[str], Path]
) -> None:
    config = read_checkpoint_info(str(checkpoint_folder("llama"))).config
    config.dtype = own
    assert pick_dtype(asked, torch.device(device), config) == expected
