"""GGUF files: a checkpoint folder is made of each once, and what cannot be read is refused clearly."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.integrations import ggml

from lp import Engine
from lp.model import gguf
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.errors import CheckpointError
from lp.model.gguf_header import TOKENS, BriefReader
from lp.platform.disk_cache import VARIABLE
from tests.gguf_files import write_gguf
from tests.models import generate_greedily

PROMPT = "def add(first, second):"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny-1.Q4.gguf")


@pytest.fixture
def file(written: Path, tmp_path: Path, own_cache: Path) -> Path:
    """A GGUF file alone in its folder, and a cache that holds no file of it."""
    folder = tmp_path / "models"
    folder.mkdir()
    return shutil.copy2(written, folder / written.name)


@pytest.fixture
def log_of_reading(file: Path, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that were logged about the file so far."""
    caplog.set_level(logging.INFO, logger="lookahead")
    return lambda: [record.getMessage() for record in caplog.records if file.name in record.getMessage()]


def refusal(path: Path, make: Callable[[str], str] = gguf.checkpoint_folder) -> str:
    with pytest.raises(CheckpointError) as raised:
        make(str(path))
    message = str(raised.value)
    assert "\n" not in message and str(path) in message
    return message


def leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and path.name == "partial"]


@pytest.mark.parametrize("named", ["file", "folder"])
def test_tokens_are_those_of_transformers(file: Path, named: str):
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    reference = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(**where)
    engine = Engine.from_pretrained(
        str(file if named == "file" else file.parent), device="cpu", step_times="off", compile="off"
    )
    completion = engine.generate(PROMPT, max_new_tokens=24)
    prompt = tokenizer.encode(PROMPT)
    assert read_checkpoint_info(str(file)).tokenizer.encode(PROMPT) == prompt
    assert completion.token_ids == generate_greedily(reference, prompt, 24, eos=[1])


def test_what_the_file_says_is_kept(file: Path):
    known = read_checkpoint_info(str(file))
    assert known.name == file.stem == Path(known.path).name
    assert known.eos == [1] and known.max_length == 640
    assert known.tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("make", "words"),
    [(gguf.checkpoint_folder, "reading the vocabulary of"), (gguf.unpacked_folder, "unpacking")],
    ids=["read", "unpacked"],
)
def test_a_folder_is_made_once(
    make: Callable[[str], str], words: str, file: Path, log_of_reading: Callable[[], list[str]]
):
    folder = make(str(file))
    before, after = log_of_reading()
    assert before.startswith(f"{words} {file.name}, once: about ") and f"{file.name} to {folder} (" in after
    assert make(str(file.parent)) == folder
    assert len(log_of_reading()) == 2
    assert bool(list(Path(folder).glob("*.safetensors"))) is (make is gguf.unpacked_folder)


def test_the_header_is_given_before_a_folder_is_made(file: Path):
    given = []
    for _ in range(2):
        gguf.checkpoint_folder(str(file), given.append)
    (header,) = given
    assert header.architecture == "llama" and header.tensors


def test_a_file_that_was_moved_is_read_where_it_is(file: Path):
    folder = gguf.checkpoint_folder(str(file))
    (other := file.parent / "other").mkdir()
    moved = file.rename(other / file.name)
    assert gguf.checkpoint_folder(str(moved)) == folder and gguf.linked_file(folder) == moved
    Engine.from_pretrained(str(moved), device="cpu", step_times="off", compile="off")


def test_configuration_and_tokenizer_are_those_of_transformers(file: Path):
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    known, kept = read_checkpoint_info(str(file)), ("_name_or_path", "dtype")
    config, expected = known.config.to_dict(), AutoConfig.from_pretrained(**where).to_dict()
    assert {name: config[name] for name in config if name not in kept} == {
        name: expected[name] for name in expected if name not in kept
    }
    tokenizer = AutoTokenizer.from_pretrained(**where)
    assert known.tokenizer.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert known.tokenizer.added_tokens_decoder == tokenizer.added_tokens_decoder
    assert known.tokenizer.special_tokens_map == tokenizer.special_tokens_map


def test_the_brief_reader_reads_what_a_configuration_needs(file: Path):
    package = pytest.importorskip("gguf")
    whole, brief = package.GGUFReader(file), BriefReader(file)
    tokens = whole.fields.pop(TOKENS)
    assert len(brief.fields.pop(TOKENS).data) == len(tokens.data) > 0
    assert brief.fields.keys() == whole.fields.keys()
    for name, field in whole.fields.items():
        if not (name.startswith("tokenizer.") and isinstance(field.contents(), list)):
            assert brief.fields[name].contents() == field.contents()
    assert [tensor.data.tobytes() for tensor in brief.tensors] == [tensor.data.tobytes() for tensor in whole.tensors]


def test_the_package_is_as_before_after_a_file_was_read(file: Path):
    package = pytest.importorskip("gguf")
    before = package.GGUFReader, package.get_tensor_name_map
    gguf.checkpoint_folder(str(file))
    assert (package.GGUFReader, package.get_tensor_name_map) == before


def test_other_weights_are_unpacked_anew(file: Path, tmp_path: Path):
    first = gguf.checkpoint_folder(str(file))
    shutil.copy(write_gguf(tmp_path / "other.gguf", seed=1), file)
    assert gguf.checkpoint_folder(str(file)) != first


@pytest.mark.parametrize("name", ["model.safetensors", gguf.MANIFEST])
def test_a_damaged_folder_is_made_anew(file: Path, name: str):
    folder = Path(gguf.unpacked_folder(str(file)))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-20])
    assert gguf.unpacked_folder(str(file)) == str(folder)
    assert (folder / name).read_bytes() == whole


def test_a_half_written_folder_is_ignored(file: Path):
    folder = Path(gguf.checkpoint_folder(str(file)))
    shutil.rmtree(folder / "..", ignore_errors=True)
    (folder.parent / "partial").mkdir(parents=True)
    (folder.parent / "partial" / "config.json").write_text("{")
    assert gguf.checkpoint_folder(str(file)) == str(folder)
    assert not (folder.parent / "partial").exists()


@pytest.mark.slow
def test_two_processes_at_once_unpack_one_folder(file: Path, tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        folders = pool.map(gguf.checkpoint_folder, [str(file)] * 2)
    assert folders[0] == folders[1]
    assert read_checkpoint_info(folders[0]).name == file.stem
    assert len(list((tmp_path / "cache").rglob("config.json"))) == 1 and not leftovers(tmp_path)


def test_weights_are_kept_in_the_smallest_exact_dtype(file: Path):
    weights = torch.tensor([1.0, 2.5])
    for dtype, added in [(torch.bfloat16, 0.0), (torch.float16, 2**-9), (torch.float32, 2**-20)]:
        model = SimpleNamespace(parameters=lambda added=added: [weights, weights + added])
        assert gguf._exact_dtype(model) is dtype  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.999])
def test_a_cut_off_file_is_refused(file: Path, tmp_path: Path, share: float):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    assert "it is cut off" in (message := refusal(file)) and "copy or download it again" in message
    assert not leftovers(tmp_path)


def test_a_file_of_another_kind_is_refused(file: Path):
    file.write_bytes(b"PK")
    assert "does not begin with the letters GGUF" in refusal(file)
    file.write_bytes(b"GGUF" + (1).to_bytes(4, "little"))
    assert "its GGUF version is 1" in refusal(file)


reads_tokenizers_name = pytest.mark.skipif(
    hasattr(ggml, "GGUF_TO_FAST_CONVERTERS"), reason="this transformers chooses it by the architecture alone"
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "wavenet"}, "architecture wavenet"),
        pytest.param({"tokenizer": "abacus"}, "the tokenizer of .*abacus", marks=reads_tokenizers_name),
        ({"without": "blk.1.ffn_up.weight"}, "lacks weights of its model: .*layers.1.mlp.up_proj"),
    ],
)
def test_a_model_that_transformers_cannot_read_is_refused(
    file: Path, tmp_path: Path, changes: dict[str, str], reason: str
):
    broken = write_gguf(tmp_path / "broken.gguf", **changes)
    with pytest.raises(CheckpointError, match=reason):
        gguf.checkpoint_folder(str(broken))
    assert str(broken) in refusal(broken)
    assert not leftovers(tmp_path)


def test_a_path_must_name_one_file(file: Path):
    assert "there is no such file" in refusal(file.with_name("other.gguf"))
    part = shutil.copy(file, file.with_name("model-00001-of-00002.gguf"))
    assert "join them first" in refusal(Path(part))
    message = refusal(file.parent)
    assert "holds 2 GGUF files" in message and f"as in model.path={file.parent}" in message


def test_a_checkpoint_folder_and_a_hub_id_stay_as_they_are(checkpoint_folder: Callable[[str], Path], file: Path):
    folder = shutil.copytree(checkpoint_folder("llama"), file.parent, dirs_exist_ok=True)
    for path in (str(folder), "somebody/model", str(folder / "none")):
        assert gguf.checkpoint_folder(path) == path


def test_a_cache_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, str(file / "cache"))
    assert f"let the environment variable {VARIABLE} name a folder" in refusal(file)


def test_a_full_disk_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(gguf.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
        assert "0.0 GB are free; make room" in refusal(file, gguf.unpacked_folder)

    def fail(file: Path, folder: Path, *others: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "_convert", fail)
    message = refusal(file)
    assert "No space left on device (the disk at /" in message and "make room there" in message
    assert not leftovers(tmp_path)


def test_a_disk_that_fills_up_while_weights_are_written_is_named(file: Path, tmp_path: Path):
    """A limit on the size of files stands for the full disk."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 2, usual[1]))
    try:
        assert "make room there, or let the environment variable" in refusal(file, gguf.unpacked_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not leftovers(tmp_path) and not list((tmp_path / "cache").rglob("*.safetensors"))
    assert Path(gguf.unpacked_folder(str(file))).is_dir()


def test_unpacking_keeps_the_cache_within_its_bound(
    file: Path, own_cache: Path, own_libraries: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOOKAHEAD_CACHE_GB", "0")
    old = own_cache / "gguf" / "old" / "other"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"weights")
    assert Path(gguf.checkpoint_folder(str(file))).is_dir()  # what this process uses stays, whatever the bound
    assert not old.exists()


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'gguf" in refusal(file)
