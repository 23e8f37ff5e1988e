"""Ranks lost under streams: which are killed and when, what counts as a gap, and what as a failure."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import rank_loss
from benchmarks.faults.kills import Kill, Plan, plans
from benchmarks.faults.requests import KINDS
from benchmarks.faults.scenarios import Outcome
from benchmarks.faults.stream import Stream, gap_s
from tests.benchmarks import pretended_ranks
from tests.benchmarks.results import read
from tests.launch.server.checkpoint import write


def streamed(*times: float, text: str = "abc", error: str | None = None) -> Stream:
    """Sent at 0, with events at these times."""
    return Stream(0.0, [*times], text, [], len(text), None if error else "length", error, times[-1] if times else 0.0)


def chunk(text: str, finish_reason: str | None = None, **more):
    return {"choices": [{"text": text, "logprobs": None, "finish_reason": finish_reason}], **more}


def test_the_gap_is_the_longest_wait_after_the_kill_less_the_usual_one() -> None:
    undisturbed = streamed(1.0, 1.1, 1.2, 1.3)
    disturbed = streamed(1.0, 1.6, 1.7, 2.2, 2.3)
    assert gap_s(disturbed, undisturbed, at=1.65) == pytest.approx(0.4)  # 0.5 s, of which 0.1 are usual
    assert gap_s(disturbed, undisturbed, at=1.5) == pytest.approx(0.5)  # the wait in which the kill falls counts
    assert gap_s(disturbed, undisturbed, at=2.25) == pytest.approx(0.0)
    assert gap_s(disturbed, undisturbed, at=9.0) == 0.0


def test_the_gap_of_a_kill_in_the_prefill_is_what_the_first_event_is_late() -> None:
    assert gap_s(streamed(1.7, 1.8), streamed(1.0, 1.1), at=0.5) == pytest.approx(0.7)


def test_a_stream_is_the_same_only_if_whole_and_equal_in_all() -> None:
    good = streamed(1.0, 2.0)
    assert good.says_the_same(streamed(1.0, 5.0))
    assert not good.says_the_same(streamed(1.0, text="abcc"))
    assert not good.says_the_same(streamed(1.0, error="a rank is lost"))
    assert not streamed(1.0, error="cut").says_the_same(streamed(1.0, error="cut"))
    named = streamed(1.0)
    named.tokens = ["a", "bc"]
    assert not good.says_the_same(named)


def test_a_stream_takes_chunks_usage_and_errors() -> None:
    seen = Stream(0.0)
    seen.take(chunk("a"))
    seen.take(chunk("b", "length", usage=None))
    seen.take_line('data: {"choices": [], "usage": {"completion_tokens": 2}}')
    seen.take_line("")
    seen.take_line("data: [DONE]")
    assert (seen.text, seen.num_tokens, len(seen.times)) == ("ab", 2, 2) and seen.is_complete
    seen.take({"error": {"message": "all ranks are lost"}})
    assert seen.error == "all ranks are lost" and not seen.is_complete


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_kills_hit_the_first_rank_the_last_and_all_others_in_every_kind_and_phase(num_ranks: int) -> None:
    drawn = list(islice(plans(num_ranks, seed=0), 20))
    assert [plan.victim for plan in drawn[:2]] == [0, num_ranks - 1]
    assert {plan.victim for plan in drawn} == set(range(num_ranks))
    assert {(plan.kind, plan.phase) for plan in drawn} == {(k, p) for k in KINDS for p in ("prefill", "decode")}
    assert Counter(plan.phase for plan in drawn) == {"prefill": 10, "decode": 10}
    assert drawn == list(islice(plans(num_ranks, seed=0), 20)) != list(islice(plans(num_ranks, seed=1), 20))


def test_moments_lie_within_the_stream() -> None:
    undisturbed = streamed(*(0.1 * number for number in range(1, 41)))
    for progress, event in ((0.0, 1), (0.5, 16), (0.999, 31)):
        assert Plan("greedy", "decode", 0, progress, 0.5).moment(undisturbed).event == event
    moment = Plan("greedy", "prefill", 0, 0.9, 0.5).moment(undisturbed)
    assert moment.event == 0 and moment.fraction < 0.5


def killed(identical: bool = True, error: str | None = None, gap: float = 0.2) -> Kill:
    return Kill("shm", 3, "greedy", "decode", 1, 5, error is None, identical, gap, 4.0, error)


def test_whatever_is_wrong_is_a_failure() -> None:
    assert rank_loss.find_failures([killed()], [Outcome("all killed", "shm", 2, True, "", None)], []) == []
    (other,) = rank_loss.find_failures([killed(identical=False)], [], [])
    assert other == "shm, 3 ranks, rank 1 killed in decode of greedy: not the tokens of the undisturbed stream"
    (cut,) = rank_loss.find_failures([killed(identical=False, error="rank 1 is lost")], [], [])
    assert cut.endswith("of greedy: rank 1 is lost")
    (scene,) = rank_loss.find_failures([], [Outcome("all killed", "shm", 2, False, "no error", None)], [])
    assert scene == "shm, 2 ranks, all killed: no error"
    assert rank_loss.find_failures([], [], ["lookahead-parallel-1"]) == ["left in shared memory: lookahead-parallel-1"]


def test_the_command_writes_down_its_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_loss, "serving", pretended_ranks.serving)
    model = write(tmp_path / "model")
    arguments = ["--model", str(model), "--ranks", "2", "--kills", "6", "--exchange", "shm", "--prompt-tokens", "300"]
    monkeypatch.setattr(sys, "argv", ["rank_loss", *arguments, "--scenarios", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        rank_loss.main()
    assert stopped.value.code == 0
    table, data = read(tmp_path, "rank_loss-model")
    assert [kill["victim"] for kill in data["kills"][:2]] == [0, 1]
    assert all(kill["is_identical"] for kill in data["kills"])
    assert {kill["kind"] for kill in data["kills"]} == set(KINDS)
    assert "gap: median" in table and "Nothing failed." in table and "cpu:" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "--ranks must be at least 2"),
        (["--kills", "0"], "--kills"),
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
