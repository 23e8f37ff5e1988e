"""schemathesis: requests made from the server's own OpenAPI document; none may be answered with a 5xx, and the server's
memory must become level.

SCHEMATHESIS_SECONDS sets for how long; `make fuzz` runs ten minutes of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median

import httpx
import pytest

from tests.clients.importing import imported

imported("schemathesis")
SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "60"))

# Schemathesis ends the test that it is in, and then reports.
LIMIT_S = SECONDS + 200
# Seconds between two looks at the server's memory; those of a run that is long enough to say whether it is level; and
# by how much the last third of the looks may be above the second one.
LOOK_S, LONG_S, LARGEST_GROWTH = 5.0, 300, 1.1


class Memory:
    """Looks at the server's memory now and then. megabytes: what was seen."""

    def __init__(self, url: str):
        self.megabytes: list[float] = []
        self._url, self._has_ended = url, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._has_ended.wait(LOOK_S):
            text = httpx.get(f"{self._url}/metrics", timeout=60).text
            found = re.search(r"^process_resident_memory_bytes.* ([\d.e+]+)$", text, re.MULTILINE)
            assert found, "the server exports its memory"
            self.megabytes.append(float(found[1]) / 1e6)

    @property
    def growth(self) -> float:
        """The memory of the last third of the looks over that of the second third."""
        third = len(self.megabytes) // 3
        return median(self.megabytes[2 * third :]) / median(self.megabytes[third : 2 * third])


@pytest.mark.timeout(LIMIT_S + 60)
def test_no_request_is_a_server_error(url: str, routes: set[str], tmp_path: Path):
    assert "/v1/chat/completions" in routes, "the server describes itself"
    program = Path(sys.executable).parent / "schemathesis"
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with Memory(url) as memory:
        run = subprocess.run(
            [program, "run", f"{url}/openapi.json", "--checks", checks, "--max-time", str(SECONDS), "--seed", "1"],
            capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path,
        )  # fmt: skip
    shown = [f"{one:.0f}" for one in memory.megabytes[:: max(1, len(memory.megabytes) // 20)]]
    print(f"\nmemory of the server, in MB: {' '.join(shown)}")
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    if len(memory.megabytes) * LOOK_S >= LONG_S:
        assert memory.growth < LARGEST_GROWTH, shown
