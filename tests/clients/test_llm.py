"""Simon Willison's `llm`, a command: an answer, a stream, and a conversation that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.importing import imported

imported("llm")


@pytest.fixture
def ask(url: str, model: str, tmp_path: Path):
    known = [{"model_id": "here", "model_name": model, "api_base": f"{url}/v1", "api_key_name": "here"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(known))
    (tmp_path / "keys.json").write_text(json.dumps({"here": "none"}))

    def run(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "llm",
            *arguments,
            "-m",
            "here",
            "-o",
            "max_tokens",
            "16",
            "-o",
            "temperature",
            "0",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_an_answer(ask):
    assert ask("prompt", "Name a colour.") == ask("prompt", "Name a colour.", "--no-stream")


def test_a_conversation(ask):
    assert ask("prompt", "Name a colour.").strip()
    assert ask("prompt", "Another one?", "--continue").strip()
