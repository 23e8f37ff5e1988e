"""The soak: what counts as a failure, and the command itself for a few seconds."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from benchmarks import soak as soak_command
from benchmarks.faults.soak_load import Answer, Load, ask, questions
from benchmarks.faults.soak_report import Holding, Soak, describe, find_failures, levels
from tests.benchmarks import pretended_ranks
from tests.benchmarks.results import read
from tests.launch.server.checkpoint import write


def holding(at_s: float, **more: float) -> Holding:
    return replace(Holding(at_s, 500.0, 60, 20, 3, 0), **more)


def soak(**more) -> Soak:
    answers = [Answer("short, greedy, prompt 0", True, 0.5, 0.1, None), Answer("long, sampled", False, 2.0, 2.0, None)]
    holdings = [holding(5.0 * number) for number in range(40)]
    return replace(Soak(10.0, 15.0, 4, 3, "shm", [0, 2], 0, 5, answers, holdings, []), **more)


def test_a_soak_in_which_all_is_well() -> None:
    assert find_failures(soak()) == []
    text = describe(soak(), [])
    assert "2 ranks killed, one every 15 s; 5 epochs" in text and "Nothing failed." in text
    assert "short, streamed" in text and "long, whole" in text and "memory (RSS), MB" in text


def test_wrong_answers_are_failures() -> None:
    wrong = Answer("long, greedy, prompt 1", True, 1.0, 0.5, "rank 2 is lost")
    assert find_failures(soak(answers=[wrong])) == ["long, greedy, prompt 1: rank 2 is lost"]


def test_a_soak_that_shows_nothing_is_a_failure() -> None:
    assert find_failures(soak(answers=[])) == ["nothing was answered"]
    assert find_failures(soak(killed=[])) == ["no rank was killed"]


def test_what_grows_steadily_is_a_failure() -> None:
    memory = [holding(5.0 * number, memory_mb=500.0 + 5 * number) for number in range(40)]
    assert find_failures(soak(holdings=memory)) == ["memory (RSS), MB grew from 572 to 672"]
    files = [holding(5.0 * number, files=60 + number) for number in range(40)]
    assert find_failures(soak(holdings=files)) == ["open files and sockets grew from 74 to 94"]
    assert find_failures(soak(left=["lookahead-parallel-x"])) == ["left behind: lookahead-parallel-x"]


def test_what_grows_at_first_and_then_stays_is_none() -> None:
    settling = [holding(5.0 * number, memory_mb=min(500.0, 100.0 + 50 * number)) for number in range(40)]
    assert levels(settling, "memory_mb") == (500.0, 500.0)
    assert find_failures(soak(holdings=settling)) == []
    peak = [holding(5.0 * number, files=200 if number == 35 else 60) for number in range(40)]
    assert find_failures(soak(holdings=peak)) == []


def test_the_load_has_short_and_long_greedy_and_sampled_questions() -> None:
    asked = questions(["def f(", "class A:"])
    assert len({question.name for question in asked}) == len(asked) == 8
    assert {(q.body["max_tokens"], q.body["temperature"]) for q in asked} == {(24, 0), (24, 0.8), (256, 0), (256, 0.8)}


def test_an_answer_that_differs_or_does_not_come_is_wrong() -> None:
    """On a server that answers once rightly, once with other text, then with an error, then not at all."""
    texts = iter(["right", "right", "other"])

    def answer(request: httpx.Request) -> httpx.Response:
        text = next(texts, None)
        if text is None:
            return httpx.Response(500, json={"error": {"message": "a rank is lost"}})
        choice = {"text": text, "logprobs": None, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 5}})

    async def judged() -> list[str | None]:
        load = Load("http://server", questions(["def f("]), 1, 0)
        name = load.questions[0].name
        async with httpx.AsyncClient(base_url=load.url, transport=httpx.MockTransport(answer)) as client:
            load.right[name] = await ask(client, {}, streams=False)
            return [load.judge(name, False, await ask(client, {}, streams=False)).wrong for _ in range(3)]

    assert asyncio.run(judged()) == [None, "another answer: 'other'", "a rank is lost"]


def test_the_command_soaks_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_command, "serving", pretended_ranks.serving)
    monkeypatch.setattr(soak_command, "SAMPLE_S", 0.2)
    arguments = ["--model", str(write(tmp_path / "model")), "--ranks", "2", "--minutes", "0.05", "--every", "0.5"]
    monkeypatch.setattr(sys, "argv", ["soak", *arguments, "--clients", "2", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):  # what a test's own process holds may well grow meanwhile
        soak_command.main()
    table, data = read(tmp_path, "soak-model-2-ranks-shm")
    soaked = data["soak"]
    assert not any(answer["wrong"] for answer in soaked["answers"]) and len(soaked["answers"]) >= 4
    assert len(soaked["killed"]) >= 3 and soaked["epochs"] > 3
    assert soaked["holdings"][-1]["memory_mb"] > 10 and soaked["holdings"][-1]["processes"] == 2
    assert "second quarter" in table
