"""The page on decoding methods: its file and its change to the registry, made in a copy of the project, are enough."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.extend.decoding_method import Repeat
from lp import Engine
from tests.docs.links import ROOT
from tests.launch.commands import environment
from tests.parallel.ranks import free_port
from tests.slow import exhaustive_except

MODEL = str(ROOT / "demo" / "python-11m")
PAGE = ROOT / "docs" / "extend" / "decoding-method.md"
PROMPT, NUM_NEW = "x = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,", 48


@pytest.fixture(scope="module")
def reference() -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    return model.generate(**prompt, do_sample=False, max_new_tokens=NUM_NEW)[0, prompt["input_ids"].shape[1] :].tolist()


def apply(diff: str, text: str) -> str:
    """The text after a change: each added line goes below the line that stands before it in the diff."""
    assert not re.search(r"^-(?!--)", diff, re.MULTILINE)
    lines = diff.splitlines()
    for before, added in pairwise(lines):
        if added.startswith("+") and not added.startswith("+++"):
            assert text.count(f"{before[1:]}\n") == 1, before
            text = text.replace(f"{before[1:]}\n", f"{before[1:]}\n{added[1:]}\n")
    return text


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the page's method in it."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("lp", "launch", "parallel", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "extend" / "decoding_method.py", folder / "lp" / "methods" / "repeat.py")
    found = re.search(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    registry = folder / "lp" / "methods" / "registry.py"
    registry.write_text(apply(found[1], registry.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def run(folder: Path, arguments: list[str], num_ranks: int = 1) -> str:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks), "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *(torchrun if num_ranks > 1 else []), str(folder / "launch" / "generate.py"), *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("num_ranks", exhaustive_except([1, 2], 2))
def test_the_changed_project_decodes_losslessly(num_ranks: int, changed: Path, reference: list[int]) -> None:
    given = [f"model.path={MODEL}", f"prompt={PROMPT}", f"max_new_tokens={NUM_NEW}", "sampling.temperature=0"]
    given += ["decode=repeat", "decode.depth=4", "step_times=off", "format=json", "parallel.threads=1"]
    out = run(changed, [*given, *(["parallel=lp"] if num_ranks > 1 else [])], num_ranks)
    record = json.loads(out.strip().splitlines()[-1])
    assert (record["decode"], record["ranks"], record["token_ids"]) == ("repeat", num_ranks, reference)
    assert record["tokens_per_step"] > 1.5


def test_the_changed_project_explains_the_method(changed: Path) -> None:
    code = "from launch.cli.programs import describe; print(describe('generate'))"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=changed,
        env=environment(PYTHONPATH=str(changed)),
        capture_output=True,
        text=True,
    )
    assert "of decode=repeat:" in shown.stdout, shown.stderr
    assert re.search(r"repeat\s+Drafts the continuation", shown.stdout)


def test_an_engine_takes_a_method_that_is_not_registered(reference: list[int]) -> None:
    engine = Engine.from_pretrained(MODEL, step_times="off")
    found = engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=Repeat())
    assert found.token_ids == reference and found.stats.tokens_per_step > 1.5
