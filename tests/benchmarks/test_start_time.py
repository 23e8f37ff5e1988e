"""The time to a server that is ready: warm and cold starts are told apart, and a server that fails is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import start_time
from benchmarks.start_time import Start
from lp.platform import disk_cache
from tests.benchmarks.results import read

SERVER = """
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200 if Handler.asked > 1 else 503)
        self.end_headers()
    def log_message(self, *arguments): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
for line in ("loaded it", f"serving it on http://127.0.0.1:{server.server_port}"):
    print(line, file=sys.stderr, flush=True)
server.serve_forever()
"""


TEXT = """
import sys, time
time.sleep(0.2)
print("loaded it", file=sys.stderr, flush=True)
time.sleep(0.2)
print("Paris", flush=True)
time.sleep(60)
"""


def test_starts_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caches = []

    def start(command, variables):
        caches.append(variables.get(disk_cache.VARIABLE))
        return Start(1.0 + len(caches), 0.5, {"loaded": 1.0})

    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setitem(start_time.PROGRAMS, "serve", (start, []))
    monkeypatch.setattr(sys, "argv", ["start_time", "--rounds", "3", "--cold-rounds", "2", "--output", str(tmp_path)])
    start_time.main()
    table, data = read(tmp_path, "start_time-smollm2")
    assert [one["ready_s"] for one in data["warm"]] == [3.0, 4.0, 5.0], "the first start is not counted"
    assert [one["ready_s"] for one in data["cold"]] == [6.0, 7.0]
    assert set(caches[:4]) == {str(tmp_path / "cache")}
    assert len(set(caches[4:])) == 2 and not set(caches[4:]) & set(caches[:4])
    assert "3.0 to 5.0" in table


def test_it_waits_until_the_server_is_ready() -> None:
    measured = start_time.start_server([sys.executable, "-c", SERVER], start_time.environment())
    assert 0 < measured.stages["loaded"] <= measured.stages["listening"] <= measured.ready_s
    assert measured.cpu_s > 0


def test_the_log_of_a_server_that_ends_is_shown() -> None:
    with pytest.raises(SystemExit, match="the port is taken"):
        start_time.start_server(
            [sys.executable, "-c", "raise SystemExit('the port is taken')"], start_time.environment()
        )


def test_a_text_has_begun_with_its_first_character() -> None:
    command = [sys.executable, "-c", TEXT]
    measured = start_time.start_text(command, start_time.environment())
    assert 0 < measured.stages["loaded"] <= measured.ready_s  # the stages are read by a thread of their own
    with pytest.raises(SystemExit, match="there is no such prompt"):
        start_time.start_text(
            [sys.executable, "-c", "raise SystemExit('there is no such prompt')"], start_time.environment()
        )
