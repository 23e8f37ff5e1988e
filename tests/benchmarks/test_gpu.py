"""The command for the first hour with a GPU, as it is called: limits, crashes, what a second run does, dry runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.__main__ import parse_arguments
from benchmarks.gpu.plan import STAGES

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What the command finds out about the machine, in a process of its own that imports torch."""
    return command.probe()


@pytest.fixture
def call(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the command in this process, which looks at the machine once for all tests."""
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setattr(command, "probe", lambda: facts)
    monkeypatch.setattr(command, "signal", Mock())  # how SIGTERM ends this process is not the command's affair

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
        code: Any = 0
        try:
            command.main()
        except SystemExit as stopped:
            code = stopped.code
        said = capsys.readouterr()
        if isinstance(code, str):
            return subprocess.CompletedProcess([], 1, said.out, f"{said.err}{code}\n")
        return subprocess.CompletedProcess([], code, said.out, said.err)

    return call


def write_plan(folder: Path, **scripts: str) -> list[str]:
    """The options for items that are Python scripts, each with a limit of 3 s, but of 1 s if it sleeps."""
    items = [
        {"name": name, "command": ["-c", script], "seconds": 1.0 if "sleep" in script else 20.0}
        for name, script in scripts.items()
    ]
    (folder / "plan.json").write_text(json.dumps(items))
    return ["--plan", str(folder / "plan.json"), "--stage", "right", "--dry-run", "--out", str(folder / "out")]


def rows(text: str) -> dict[str, list[str]]:
    """The table's cells by the item's name."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells[2:]}


def test_what_hangs_or_crashes_does_not_stop_the_rest(call: Call, tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])"
    options = write_plan(
        tmp_path,
        hangs="import time; print('so far', flush=True); time.sleep(99)",
        crashes="import os; print('almost', flush=True); os.abort()",
        refuses="raise SystemExit('no room')",
        leaves_a_child=f"{child}; print('left')",
        works="print('all is well')",
    )
    begin = time.monotonic()
    done = call(*options)
    assert done.returncode == 1 and time.monotonic() - begin < 90
    found = rows(done.stdout)
    assert found["hangs"][0] == "FAILED" and found["hangs"][2] == "stopped at its limit of 1 s"
    assert found["crashes"][2] == "ended by signal 6: almost"
    assert found["refuses"][2] == "ended with exit code 1: no room"
    assert found["leaves_a_child"][0] == found["works"][0] == "done" and found["works"][2] == "all is well"
    assert done.stdout.splitlines()[-1].startswith("| works"), "the table is printed last"
    assert "right [2/5] crashes" in done.stderr and "FAILED after" in done.stderr
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["gpu-right-dry-run.json", "gpu-right-dry-run.md"]
    written = (out / "gpu-right-dry-run.md").read_text()
    assert "## The end of the output of hangs\n\n    so far" in written and rows(written) == found


def test_a_second_run_does_what_is_missing(call: Call, tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    options = write_plan(tmp_path, works=f"{note}; print('fine')", fails=f"{note}; raise SystemExit('no')")
    runs = [(tmp_path / "runs").read_text() for _ in range(2) if call(*options).returncode == 1]
    assert runs == ["xx", "xxx"], "what was done is kept, and what failed is tried again"
    assert rows(call(*options, "--fresh").stdout)["works"][0] == "done"
    assert (tmp_path / "runs").read_text() == "xxxxx"


def test_what_needs_a_missing_module_is_left_out(call: Call, tmp_path: Path) -> None:
    options = write_plan(tmp_path, works="print('all is well')")
    plan = tmp_path / "plan.json"
    needy = {"name": "needy", "command": ["-c", "raise SystemExit(1)"], "seconds": 20.0, "needs": "no_such_module"}
    plan.write_text(json.dumps([*json.loads(plan.read_text()), needy]))
    done = call(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(done.stdout)["needy"] == ["left out", "", "needs no_such_module, which is not installed"]


def test_without_time_nothing_is_begun(call: Call, tmp_path: Path) -> None:
    options = write_plan(tmp_path, slow="print('never')")
    done = call(*options, "--minutes", "0.001")
    assert done.returncode == 1
    assert rows(done.stdout)["slow"] == ["waiting", "", "not begun, as the time is used up; the same command does it"]


@pytest.mark.slow
def test_an_interrupt_stops_the_item_and_keeps_the_results(tmp_path: Path) -> None:
    options = write_plan(tmp_path, works="print('fine')", long="import time; time.sleep(99)")
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan[1]["seconds"] = 100
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "[2/2] long" in line:
            process.terminate()
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command does what is left" in err
    assert rows(out)["works"][0] == "done" and rows(out)["long"][0] == "waiting"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "9"], "argument --stage: invalid choice: '9'"),
        (["--minutes", "0"], "--minutes 0 must be more than 0"),
        (["--plan", "x.json"], "--plan needs one --stage, whose items it replaces"),
        (["--out", "/dev/null/x"], "--out /dev/null/x is not a folder that can be made"),
    ],
)
def test_bad_options_are_told(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    with pytest.raises(SystemExit) as caught:
        parse_arguments()
    said = capsys.readouterr().err
    assert caught.value.code == 2 and message in said and "Traceback" not in said


def test_a_plan_that_cannot_be_used_is_told(call: Call, tmp_path: Path) -> None:
    done = call("--dry-run", "--stage", "right", "--plan", "/nowhere.json", "--out", str(tmp_path))
    assert done.returncode not in (0, None) and "Traceback" not in done.stderr
    assert "--plan /nowhere.json cannot be used" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_gives_one_message(call: Call, tmp_path: Path) -> None:
    done = call("--stage", "right", "--out", str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert "there is no GPU that torch can use here: " in done.stderr and "try it out with --dry-run" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("right", marks=[pytest.mark.slow, pytest.mark.interpreted]),
        pytest.param("speed", marks=pytest.mark.slow),
        pytest.param("attention", marks=pytest.mark.exhaustive),
        pytest.param("texts", marks=pytest.mark.exhaustive),
    ],
)
def test_a_dry_run_goes_through_a_stage(stage: str, tmp_path: Path) -> None:
    arguments = ["--dry-run", "--stage", stage, "--minutes", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        capture_output=True, text=True, timeout=200, env={**os.environ, "OUT": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert {row[0] for row in rows(done.stdout).values()} == {"done"}
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"gpu-{stage}-dry-run.{ending}" for ending in ("json", "md")} and 2 * len(STAGES) <= 8
    text = (tmp_path / f"gpu-{stage}-dry-run.md").read_text()
    assert "- torch: " in text and "aten::_flash_attention_forward takes seqused_k: yes, block_table: " in text
    if stage == "right":
        assert "tests passed" in text and "compute-sanitizer was not run" in text
    if stage in ("speed", "attention"):
        assert "| variant" in text and "of bandwidth" in text
    if stage == "speed":
        assert "all products of a step by cuBLAS" in text
        assert "rows per second" in text and "4 sequences of 1 row" in done.stdout
