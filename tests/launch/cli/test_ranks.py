"""Ranks that `lookahead` starts: their environment, how they end, and what becomes of signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.cli import ranks

PLACE = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_every_rank_knows_its_place(tmp_path: Path) -> None:
    path = f"os.path.join({str(tmp_path)!r}, os.environ['RANK'])"
    text = f"import os; open({path}, 'w').write(' '.join(os.environ[key] for key in {PLACE!r}))"
    assert ranks.run_processes(python(text), 3) == 0
    told = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [words[:4] for words in told] == [["3", str(rank), "3", "127.0.0.1"] for rank in range(3)]
    assert len({words[4] for words in told}) == 1


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (["sys.exit(2)", "time.sleep(60)"], 2, ""),
        (["sys.exit(0)", "time.sleep(60)"], 0, ""),
        (["time.sleep(0.3); sys.exit(1)", "sys.exit(2)"], 1, ""),
        (["time.sleep(0.3)", "sys.exit(2)"], 2, ""),
        (["time.sleep(0.3); sys.exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"], 1, "rank 1 was ended by SIGKILL\n"),
    ],
)
def test_how_one_rank_ends_decides_for_all(
    ends: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"import os, signal, sys, time; exec({ends!r}[int(os.environ['RANK'])])"
    begin = time.monotonic()
    assert ranks.run_processes(python(text), 2, leave_s=1.0) == code
    assert time.monotonic() - begin < 30
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_rank_0_alone(number: signal.Signals) -> None:
    rank = (
        "import os, signal, sys, time\n"
        "is_first = os.environ['RANK'] == '0'\n"
        "def leave(number, frame):\n"
        "    print(number, file=sys.stdout if is_first else sys.stderr)\n"
        "    sys.exit(128 + number)\n"
        "signal.signal(signal.SIGINT, leave)\n"
        "if is_first:\n"
        "    signal.signal(signal.SIGTERM, leave)\n"
        "    print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    parent = (
        "import sys; from launch.cli.ranks import run_processes\n"
        f"sys.exit(run_processes([sys.executable, '-c', {rank!r}], 2))"
    )
    process = subprocess.Popen(python(parent), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error) == (128 + number, f"{int(number)}\n", "")


def test_ctrl_c_while_a_command_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "hydra.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-m", "launch", "cache"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "interrupted\n")
