"""What cannot be served is said in plain words, with an exit code, and nothing is left running."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.faults.rank_server import serve_command
from tests.launch.commands import environment
from tests.slow import exhaustive_except

ENDS_WITHIN_S = 300


@pytest.mark.slow
def test_a_rank_that_fails_at_every_start_is_given_up_with_its_own_message(model: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"no weights")
    command = serve_command(broken, 2)
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENDS_WITHIN_S)
    assert ended.returncode == 2
    [said] = [line for line in ended.stderr.splitlines() if "cannot be loaded" in line]
    assert re.match(r"error: rank [01] cannot be started: the model", said), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    exhaustive_except(
        [
            ("parallel=tp", "parallel.tp=5 is more than the 4 attention heads"),
            ("parallel=pp", "parallel.pp=5 is more than"),
            ("parallel.timeout_s=0", "parallel.timeout_s=0 must be"),
            ("model.dtype=float31", "dtype='float31' is unknown; use auto, float32"),
        ],
        ("parallel=tp", "parallel.tp=5 is more than the 4 attention heads"),
    ),
)
def test_settings_that_cannot_be_are_refused_before_a_rank_is_started(model: Path, setting: str, words: str) -> None:
    command = [*serve_command(model, 5), setting]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENDS_WITHIN_S)
    assert ended.returncode == 2
    [message] = ended.stderr.splitlines()
    assert message.startswith("error: ") and words in message
