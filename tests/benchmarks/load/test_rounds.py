"""Rounds over servers in the test's own process: turns, servers that break, Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.load import rounds
from benchmarks.load.client import RequestRecord
from benchmarks.load.prompts import LoadRequest
from benchmarks.load.rounds import Measurements, measure
from benchmarks.load.scenarios import ClosedLoop, Intrusion, OpenLoop, Scenario
from benchmarks.load.systems.dialects import Api
from benchmarks.load.systems.specs import ServerNeeds, read_systems
from lp.model.checkpoint import ModelSettings, load
from tests.launch.server import harness
from tests.launch.server.checkpoint import write

NEEDS = ServerNeeds("none", "float32", 1, 1, 4, 100)
REQUESTS = [LoadRequest(f"def f{number}(x):", "?", 6) for number in range(4)]
CLOSED = Scenario("closed", {"all": ClosedLoop(REQUESTS, 2)}, "streams", 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.Running]:
    folder = write(Path(tmp_path_factory.mktemp("load")) / "model")
    with harness.serving(load(ModelSettings(path=str(folder), device="cpu"))) as running:
        yield running


def run(urls: list[str], *scenarios: Scenario, num_rounds: int = 1) -> Measurements:
    return measure(read_systems([], urls), NEEDS, Api.completions, REQUESTS[:1], [scenarios] * num_rounds, 30.0)


def test_systems_take_turns_and_are_counted(server: harness.Running):
    found = run([server.url, server.url], CLOSED, num_rounds=2)
    assert [(cell.round, cell.system) for cell in found.cells] == [(1, "url1"), (1, "url2"), (2, "url2"), (2, "url1")]
    for cell in found.cells:
        assert [record.num_tokens for record in cell.whole] == [6] * 4
        assert cell.counters["vllm:generation_tokens_total"] == 24
        assert cell.tokens_per_s > 0 and cell.client_cpu_s > 0
    assert not found.left_out and not found.is_cut_short


def test_open_loops_keep_their_times_and_an_intruder_waits_for_its_stream(server: harness.Running):
    opened = Scenario("open", {"all": OpenLoop(REQUESTS[:2], [0.0, 0.3])}, "requests/s", 1)
    long = LoadRequest("class Point:", "?", 120)
    pause = Scenario("pause", {"try 1": Intrusion(long, REQUESTS[0], 3)}, "pause")
    first, second = run([server.url], opened, pause).cells
    early, late = sorted(first.records, key=lambda one: one.sent_at)
    assert 0.28 < late.sent_at - early.sent_at < 1.0 and late.due_at - early.due_at == pytest.approx(0.3)
    stream, intruder = second.records
    assert not stream.error and not intruder.error
    assert stream.times[0] < intruder.sent_at < stream.times[-1]
    assert len(second.pauses) == 1


def test_a_system_that_cannot_be_had_is_left_out_and_the_others_are_measured(server: harness.Running):
    found = run(["http://127.0.0.1:9", server.url], CLOSED)
    assert [cell.system for cell in found.cells] == ["url2"]
    assert "does not name its model" in found.left_out["url1"]


def test_a_system_that_answers_nothing_any_more_is_left_out(server: harness.Running):
    refused = [LoadRequest("x", "?", 0)] * 2  # max_tokens=0 is refused
    found = run([server.url], CLOSED, Scenario("refused", {"all": ClosedLoop(refused, 2)}, "streams", 2), CLOSED)
    assert [cell.scenario for cell in found.cells] == ["closed", "refused"]
    assert "answered none of 2 requests; the first: HTTP 400" in found.left_out["url"]


def test_what_was_measured_before_ctrl_c_is_kept(server: harness.Running, monkeypatch: pytest.MonkeyPatch):
    run_cell = rounds._Runner._run_cell

    def interrupted(self, number: int, *rest) -> None:
        if number == 2:
            raise KeyboardInterrupt
        run_cell(self, number, *rest)

    monkeypatch.setattr(rounds._Runner, "_run_cell", interrupted)
    found = run([server.url], CLOSED, num_rounds=2)
    assert found.is_cut_short and [cell.round for cell in found.cells] == [1]


def test_requests_go_to_servers_by_turn():
    asked = []

    async def note(client, url: str, body: dict, record: RequestRecord, on_piece) -> None:
        record.sent_at = record.ended_at = time.perf_counter()
        asked.append(url)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.load.drive.stream", note)
        driver = rounds.Driver(["http://a", "http://b"], lambda request: ("/x", {}), 1.0)
        rounds.asyncio.run(driver.run(CLOSED))
    assert asked == ["http://a/x", "http://b/x"] * 2
