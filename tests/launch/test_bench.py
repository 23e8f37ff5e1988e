"""launch/bench.py as a user runs it: real ranks, points that fail, sweeps that are stopped and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import bench as program
from tests.launch import commands
from tests.models import save_checkpoint

SMALL = ["decode=lookahead", "workload.limit=2", "workload.max_new_tokens=8", "rounds=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its context is long enough for the shipped workload, whose texts the tiny tokenizer cuts into bytes."""
    return f"model.path={save_checkpoint(tmp_path_factory.mktemp('model'), max_position_embeddings=4096)}"


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run("bench", list(arguments), folder, timeout_s=240)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_help_into_a_pipe_that_is_closed_says_nothing() -> None:
    command = f"{sys.executable} launch/bench.py --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout and done.stderr == ""


@pytest.mark.slow
def test_a_sweep_of_modes_is_resumed_with_a_point_that_cannot_run(model: str, tmp_path: Path) -> None:
    first = bench(tmp_path, "-m", model, *SMALL, "parallel=lp,tp,pp", "parallel.ranks=2", "output=out")
    assert first.returncode == 0, first.stderr
    by_name = {summary["name"]: summary for summary in lines(tmp_path / "out/summary.jsonl")}
    lp, tp, pp = (by_name.pop(f"{mode} x2 lookahead (7, 5, 7)") for mode in ("lp", "tp", "pp"))
    assert list(by_name) == ["transformers generate", "single autoregressive"]
    assert all(summary["same_texts"] == 2 for summary in (*by_name.values(), lp, tp, pp))
    assert lp["collectives_per_step"] == 1 and 0 < lp["bytes_per_step"] < 1024
    assert tp["collectives_per_step"] == 2 * 3 + 2 + 1  # the last is the header of the commands
    whole = by_name["single autoregressive"]["weight_bytes"]
    assert lp["weight_bytes"] == whole and tp["weight_bytes"] < 0.55 * whole and pp["weight_bytes"] < 0.75 * whole
    assert "point" in first.stdout
    assert (tmp_path / "out/report.html").read_text().count("<svg") == 11
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # Hydra leaves no files
    done = lines(tmp_path / "out/runs.jsonl")
    assert all(len(run["cores"]) == len(run["ranks"]) and run["texts"][0]["tokens"] == 8 for run in done)

    again = bench(tmp_path, "-m", model, *SMALL, "parallel=pp", "parallel.ranks=2,4", "output=out")
    assert again.returncode == 1, again.stderr
    assert "holds 5 measurements already; 1 are left" in again.stderr
    assert "failed: pp x4 lookahead (7, 5, 7): parallel.pp=4 is more than" in again.stderr
    assert [summary["rounds"] for summary in lines(tmp_path / "out/summary.jsonl")] == [1, 1, 1, 0]


Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Calls the program in this process, in an empty folder: arguments -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["launch/bench.py", *arguments])
        code = program.main()
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["workload=humaneval"], "workload=humaneval needs workload.path=FILE"),
        (["workload.path=absent.jsonl"], "workload.path=absent.jsonl cannot be read"),
        (["rounds=0"], "rounds=0 must be at least 1"),
        (["-m", "rounds=1,2"], "rounds applies to the whole sweep and takes one value"),
        (["-m", "parallel=single,lp"], "parallel=lp on how many ranks? Give parallel.ranks=N"),
        (["output=/proc/nowhere"], "output=/proc/nowhere cannot be written"),
        (["-m", "parallel=single,sideways"], "parallel cannot be 'sideways'; it is one of auto, dp, lp,"),
        (
            ["-m", "parallel.mode=lp,sideways"],
            "parallel.mode cannot be 'sideways'; it is one of auto, single, lp, dp, tp, pp",
        ),
        (["parallell=lp"], "parallell"),
        (["decode=lookahead,jacobi"], "add --multirun"),
        (["model=checkpoint", "-m"], "model.path must be given"),
    ],
)
def test_an_unusable_command_line_gives_one_message(arguments: list[str], message: str, main: Main) -> None:
    code, out, err = main(*arguments)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []


def wait_for(path: Path, text: str, child: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 120
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.05)
    return path.read_text()


@pytest.mark.slow
def test_interrupt_keeps_measurements_and_says_how_to_resume(model: str, tmp_path: Path) -> None:
    child = commands.start("bench", [model, *SMALL, "rounds=50", "output=out"], tmp_path)
    wait_for(tmp_path / "out/runs.jsonl", "done", child)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "To resume, give the same command with output=out" in stderr and "Traceback" not in stderr
    assert "transformers" in stdout and (tmp_path / "out/report.html").exists()


@pytest.mark.slow
def test_a_rank_that_dies_fails_only_its_point(model: str, tmp_path: Path) -> None:
    slow = [model, "workload.limit=1", "workload.max_new_tokens=3000", "rounds=1", "output=out", "baselines=[]"]
    child = commands.start("bench", [*slow, "parallel=lp", "parallel.ranks=2", "decode=autoregressive"], tmp_path)
    wait_for(tmp_path / "out/runs.jsonl", "done", child)
    victim = None
    while victim is None:
        victim = _rank_process(child.pid, "1")
        time.sleep(0.2)
    time.sleep(2)
    assert len(os.sched_getaffinity(victim)) == 1
    os.kill(victim, signal.SIGKILL)
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 1, stderr
    failed = [run for run in lines(tmp_path / "out/runs.jsonl") if run["status"] == "failed"]
    assert len(failed) == 1 and re.search("rank 1 (was ended by SIGKILL|is lost)", failed[0]["error"])


def _rank_process(parent: int, rank: str) -> int | None:
    """Returns the process id of a rank of the point with several ranks, or None if it has not started."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if "=" in entry)
            words = path.with_name("cmdline").read_text()
            ppid = path.with_name("stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if "launch.sweep.rank" in words and variables.get("RANK") == rank and ppid == str(parent):
            return int(path.parent.name)
    return None


def test_help_names_groups_and_settings(main: Main) -> None:
    code, out, _ = main("--help")
    assert code == 0
    for word in ("parallel=auto|dp|lp|lp_tp|pp|single|tp", "workload=classeval|", "rounds: 5", "cores_per_rank: 1"):
        assert word in out
