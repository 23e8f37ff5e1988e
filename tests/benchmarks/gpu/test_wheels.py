"""Which packages a machine lacks, and what those need in turn."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.gpu.wheels import NEEDED, NEEDS, USED_BY, missing_packages, requirements

ROOT = Path(__file__).resolve().parents[3]
# What a machine with PyTorch, transformers and the usual packages of science has, as far as this project asks for it.
USUAL = {
    "torch", "transformers", "numpy", "safetensors", "tokenizers", "accelerate", "huggingface-hub", "filelock", "httpx",
    "jinja2", "psutil", "rich", "tqdm", "pyyaml", "requests", "packaging", "matplotlib", "tabulate", "scipy", "pytest",
    "pytest-timeout", "pytest-xdist",
}  # fmt: skip


def test_what_is_missing_is_told_with_its_version_and_purpose() -> None:
    found = missing_packages(ROOT, lambda name: name in USUAL)
    named = {name.partition("==")[0]: (name, why) for name, why in found.items()}
    for name in ("platformdirs", "gguf"):
        assert re.fullmatch(rf"{name}==\d[\d.]*", named[name][0]) and named[name][1].startswith("needed")
    for name in ("hydra-core", "omegaconf", "antlr4-python3-runtime", "prompt-toolkit", "wcwidth"):
        assert named[name][1] == "not needed here"
    assert missing_packages(ROOT, lambda name: True) == {}
    assert missing_packages(ROOT, lambda name: name != "tabulate") == {
        next(key for key in missing_packages(ROOT, lambda name: name != "tabulate")): "wanted: parts 2 to 4"
    }


def test_the_tables_name_packages_that_are_asked_for() -> None:
    assert {*NEEDED, *USED_BY} <= set(requirements(ROOT))


@pytest.mark.parametrize("name", NEEDS)
def test_the_needs_that_are_written_down_are_those_of_the_packages(name: str) -> None:
    asked = [text for text in metadata.requires(name) or [] if "extra ==" not in text and "python_version" not in text]
    own = {re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0].lower().replace("_", "-") for text in asked}
    assert own == set(NEEDS[name])
