"""The items run where the packages that they can do without are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Refuses packages that a GPU machine usually lacks and that no item needs.
WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {absent}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Refuse())
import importlib
for name in {modules}:
    importlib.import_module(name)
"""
ABSENT = [
    "hydra",
    "omegaconf",
    "antlr4",
    "prompt_toolkit",
    "fastapi",
    "uvicorn",
    "pydantic",
    "ray",
    "openai",
    "rouge_score",
    "platformdirs",
    "gguf",
    "xgrammar",
    "llguidance",
]
ITEMS = [
    "benchmarks.gpu.steps",
    "benchmarks.gpu.packed",
    "benchmarks.gpu.products",
    "benchmarks.gpu.prompts",
    "benchmarks.sampling_cost",
    "benchmarks.tokens_per_step",
    "benchmarks.half_precision",
]
ITEMS += ["tests.gpu.conftest", "tests.gpu.test_graphs", "tests.gpu.test_threads", "tests.gpu.test_shared_gpu"]
DRIVER = ["benchmarks.gpu", "benchmarks.gpu.probe"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [(ITEMS, ABSENT), (DRIVER, [*ABSENT, "numpy", "tqdm", "psutil", "platformdirs", "gguf", "lp"])],
)
def test_what_items_import(modules: list[str], absent: list[str]) -> None:
    """torch imports pydantic if it is there; that it can do without it is its own affair."""
    script = WITHOUT.format(absent=absent, modules=modules)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
