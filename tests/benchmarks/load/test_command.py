"""The command: it starts a server of its own, loads it and writes a report; wrong options end it with one line."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.load.__main__ import main
from tests.benchmarks.results import read, read_plot
from tests.launch.server.checkpoint import write

DEMO = Path(__file__).resolve().parents[3] / "demo" / "python-11m"


def call(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["load", "--output", str(output), *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the test run keeps its own handlers
    main()


@pytest.mark.exhaustive
def test_two_streams_against_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    options = ["--model", str(DEMO), "--streams", "1,2", "--requests", "2", "--rounds", "1", "--max-new-tokens", "8"]
    systems = ["--system", "plain=decode=autoregressive model.compile=off"]
    call(monkeypatch, tmp_path, *options, *systems, "--warm-up", "1", "--longest-prompt", "60", "--name", "trial")
    table, data = read(tmp_path, "load-python-11m-float32-trial")
    assert [(cell["system"], cell["load"]) for cell in data["cells"]] == [("plain", 1), ("plain", 2)]
    assert [len(cell["requests"]) for cell in data["cells"]] == [2, 4]
    assert all(
        request["tokens"] == 8 and not request["error"] for cell in data["cells"] for request in cell["requests"]
    )
    assert data["cells"][1]["counters"]["vllm:generation_tokens_total"] == 32
    assert "- plain: this project, decode=autoregressive" in table and not data["left_out"]
    assert "output tokens per second" in read_plot(tmp_path, "load-*")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--streams", "0"], "'0' is not a list of whole numbers above 0"),
        (["--rate", "1,x"], "'1,x' is not a list of numbers above 0"),
        (["--trace", "missing.jsonl"], "--trace missing.jsonl cannot be read"),
        (["--system", "fast"], "--system 'fast' is not NAME=OVERRIDES"),
        (["--url", "localhost"], "'localhost' is not the address of a server"),
        (["--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["--slo-ttft-ms", "0"], "--slo-ttft-ms must be above 0, not 0"),
        (["--max-new-tokens", "1"], "--max-new-tokens must be at least 2"),
        (["--burst", "1,0,1"], "--burst needs at least one stream"),
        (["--api", "chat", "--pause"], "use --api completions"),
    ],
)
def test_a_wrong_option_gets_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, tmp_path, *arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere/at/all"], "nowhere/at/all"),
        (["--pause", "5000"], "the context of model has 1024"),
        (["--longest-prompt", "1"], "raise --longest-prompt"),
        (["--api", "chat"], "model has no chat template"),
        (["--prompts", "nowhere"], "--prompts nowhere has none of the files"),
    ],
)
def test_what_does_not_fit_the_model_is_said(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = write(tmp_path / "model", chat_template=None)
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, tmp_path, "--model", str(folder), "--url", "http://127.0.0.1:9", *arguments)
    assert said in str(stopped.value.code) and "\n" not in str(stopped.value.code)


def test_a_run_without_any_figure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path / "model")
    with pytest.raises(SystemExit, match="nothing was measured"):
        call(monkeypatch, tmp_path, "--model", str(folder), "--url", "http://127.0.0.1:9", "--streams", "1")
    table, data = read(tmp_path, "load-*")
    assert data["cells"] == [] and "Nothing was measured." in table
