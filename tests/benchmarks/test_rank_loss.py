"""The command that kills ranks: what counts as a failure, what it writes, which arguments it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import rank_loss
from benchmarks.faults.kills import KillResult
from benchmarks.faults.requests import KINDS
from benchmarks.faults.scenarios import ScenarioResult
from benchmarks.faults.soak_load import LoadAnswer
from tests.benchmarks.faults import pretended_ranks
from tests.benchmarks.results import read
from tests.launch.server.checkpoint import write


def killed(identical: bool = True, error: str | None = None, gap: float = 0.2) -> KillResult:
    return KillResult("shm", 3, "greedy", "decode", 1, 5, error is None, identical, gap, 4.0, error)


def test_whatever_is_wrong_is_a_failure() -> None:
    assert rank_loss.find_failures([killed()], [], [ScenarioResult("all killed", "shm", 2, True, "", None)], []) == []
    (other,) = rank_loss.find_failures([killed(identical=False)], [], [], [])
    assert other == "shm, 3 ranks, rank 1 killed in decode of greedy: not the tokens of the undisturbed stream"
    (cut,) = rank_loss.find_failures([killed(identical=False, error="rank 1 is lost")], [], [], [])
    assert cut.endswith("of greedy: rank 1 is lost")
    (scene,) = rank_loss.find_failures([], [], [ScenarioResult("all killed", "shm", 2, False, "no error", None)], [])
    assert scene == "shm, 2 ranks, all killed: no error"
    answers = [LoadAnswer("short", False, 1.0, 1.0, wrong) for wrong in (None, "a rank is lost")]
    (wrong,) = rank_loss.find_failures([], answers, [], [])
    assert wrong == "another stream, short: a rank is lost"
    (left,) = rank_loss.find_failures([], [], [], ["lookahead-parallel-1"])
    assert left == "left in shared memory: lookahead-parallel-1"


@pytest.mark.slow
def test_the_command_writes_down_its_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_loss, "serving", pretended_ranks.serving)
    model = write(tmp_path / "model")
    arguments = ["--model", str(model), "--ranks", "2", "--kills", "6", "--exchange", "shm", "--prompt-tokens", "300"]
    arguments += ["--streams", "3"]
    monkeypatch.setattr(sys, "argv", ["rank_loss", *arguments, "--scenarios", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        rank_loss.main()
    assert stopped.value.code == 0
    table, data = read(tmp_path, "rank_loss-model")
    assert [kill["victim"] for kill in data["kills"][:2]] == [0, 1]
    assert all(kill["is_identical"] for kill in data["kills"])
    assert {kill["kind"] for kill in data["kills"]} == set(KINDS)
    assert data["others"] and all(answer["wrong"] is None for answer in data["others"])
    assert f"2 other clients asked all the time: {len(data['others'])} of their" in table
    assert "gap: median" in table and "Nothing failed." in table and "cpu:" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "--ranks must be at least 2"),
        (["--kills", "0"], "--kills"),
        (["--streams", "0"], "--streams at least 1"),
        (["--scenarios", "flood"], "flood not known"),
        (["--model", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys, "argv", ["rank_loss", "--output", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        rank_loss.main()
    assert stopped.value.code == 2 and message in capsys.readouterr().err
