"""Two tiny checkpoints with a chat template, and launch/chat.py called in this process with its lines piped in."""

from __future__ import annotations

import io
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from launch import chat as program
from lp import Engine
from tests.models import save_checkpoint

TEMPLATE = (
    "{% for m in messages %}{% if 'forbidden' in m.content %}{{ raise_exception('mind your words') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
QUICK = ["model.compile=off", "step_times=off", "parallel.threads=1"]
Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_checkpoint(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE))


@pytest.fixture(scope="session")
def talkative_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that never ends an answer by itself, and with so long a context that this takes a while."""
    folder = tmp_path_factory.mktemp("talkative")
    save_checkpoint(folder, chat_template=TEMPLATE, max_position_embeddings=60_000)
    for file in (folder / "config.json", folder / "generation_config.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": []}))
    return str(folder)


@pytest.fixture(scope="session")
def engine(chat_folder: str) -> Engine:
    return Engine.from_pretrained(chat_folder, device="cpu", compile="off", step_times="off")


@pytest.fixture
def chat(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """Pipes lines in, in an empty folder: arguments and lines -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str, lines: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["launch/chat.py", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        capfd.readouterr()  # what fixtures have written
        return program.main(), *capfd.readouterr()

    yield call
    logging.getLogger().handlers.clear()  # they write to this test's stderr, which is closed afterwards
    torch.set_num_threads(1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
