"""launch/tune.py through its command line: what it prints, what it keeps, and how it reports bad input."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from launch import tune
from launch.config import engine_settings, process
from launch.data.workloads import WorkloadSettings
from launch.tune import TuneSettings
from lp.platform.disk_cache import VARIABLE
from tests.launch import commands
from tests.models import VOCAB_SIZE, save_checkpoint

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def arguments(folder: str, tmp_path: Path) -> list[str]:
    """The arguments of a short run on a tiny model."""
    lines = [json.dumps({"id": name, "prompt": f"def {name}(x):"}) for name in ("f", "g")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return [f"model.path={folder}", "workload.path=prompts.jsonl", "workload.max_new_tokens=12", "ignore_eos=true"]


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Main]:
    """Calls the program in this process, with a folder and a cache of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str) -> tuple[int, str, str]:
        engine_settings.register("tune", TuneSettings, workload=WorkloadSettings)
        capfd.readouterr()  # what fixtures have written
        code = process.main("tune", TuneSettings, tune.run, "usage", ["parallel.threads=1", *arguments])
        return code, *capfd.readouterr()

    yield call
    torch.set_num_threads(1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_curve_choice_and_speed_are_shown(main: Main, arguments: list[str], tmp_path: Path) -> None:
    code, out, err = main(*arguments, "decode.max_rows=16")
    assert code == 0, err
    assert "float32 on cpu; single on 1 rank(s), 1 thread(s) each" in out
    (kept,) = (tmp_path / "cache" / "step-times").iterdir()
    curve = json.loads(kept.read_text())
    assert curve["rows"] == [1, 2, 4, 8, 12, 16]
    lines = [line.split() for line in out.splitlines()]
    shown = {line[0]: line[1] for line in lines if len(line) > 1}
    for rows in curve["rows"]:  # the file may have been learnt from the texts that came after the table
        assert float(shown[str(rows)]) > 0
    assert "rows chosen: " in out and "window of 4 levels" in out and out.count("chosen\n") <= 1
    (per_step,) = (line for line in lines if line[:3] == ["tokens", "per", "step"])
    assert float(per_step[3]) >= 1 and per_step[5:] == ["1.00", "1.00"]
    assert ["over", "autoregressive"] in [line[:2] for line in lines]
    assert "measuring the time of a step" in err


def test_another_method_that_chooses_its_size_is_tuned(main: Main, arguments: list[str]) -> None:
    code, out, err = main(*arguments, "decode=jacobi", "decode.window=auto")
    assert code == 0, err
    assert "rows chosen: " in out and "window of 1 levels" in out


@pytest.mark.slow
def test_it_measures_again_unless_told_otherwise(
    main: Main, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(*arguments)[0] == 0
    (kept,) = (tmp_path / "cache" / "step-times").iterdir()
    made_up = {"rows": [1, 2], "seconds": [4.0, 5.0], "num_parts": 1}
    kept.write_text(json.dumps(made_up))
    code, out, err = main(*arguments, "step_times=auto")
    assert code == 0 and "4000.00" in out, err
    assert main(*arguments)[0] == 0
    assert json.loads(kept.read_text()) != made_up


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["decode=lookahead"], "decode=lookahead has a fixed size"),
        (["decode.rows=8"], "decode.rows=8 leaves no choice"),
        (["decode.max_rows=0"], "decode.max_rows=0 is out of range"),
        (["step_times=off"], "step_times=off leaves nothing to choose by"),
        (["step_times=guess"], "guess"),
        (["workload.path=missing.jsonl"], "missing.jsonl"),
        (["workload=humaneval", "workload.path=null"], "needs workload.path=FILE"),
        (["workload.max_new_tokens=1"], "workload.max_new_tokens=1 comes with the prompt's step"),
        (["workload.max_new_tokens=640"], "line 1: workload.max_new_tokens=640 leaves no room"),
        (["prompt=hello"], "prompt"),
    ],
)
def test_bad_input_gives_one_message(extra: list[str], said: str, main: Main, arguments: list[str]) -> None:
    code, out, err = main(*arguments, *extra)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (2, "", 1), err
    assert said in errors[0]
    assert "Traceback" not in err


def test_texts_that_end_at_once_are_reported(main: Main, arguments: list[str], tmp_path: Path) -> None:
    always_over = save_checkpoint(tmp_path / "over", eos_token_id=list(range(VOCAB_SIZE)))
    code, out, err = main(*arguments, "ignore_eos=false", f"model.path={always_over}")
    assert (code, out) == (2, ""), err
    assert "error: all texts ended with their first step" in err


def test_help_lists_the_settings(main: Main) -> None:
    code, out, _ = main("--help")
    assert code == 0
    assert "step_times: measure" in out and "workload=" in out


@pytest.mark.slow
def test_two_ranks_of_lookahead_parallelism(arguments: list[str], tmp_path: Path) -> None:
    result = commands.run(
        "tune", [*arguments, "parallel=lp", "parallel.debug=true", "decode.max_rows=8"], tmp_path, num_ranks=2
    )
    assert result.returncode == 0, result.stderr
    assert "lp on 2 rank(s), 1 thread(s) each" in result.stdout
    assert result.stdout.count("over autoregressive") == 1
