"""schemathesis: requests made from the server's own OpenAPI document; none may be answered with a 5xx.

SCHEMATHESIS_SECONDS sets for how long; `make fuzz` runs ten minutes of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.importing import imported

imported("schemathesis")
SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "60"))

# Schemathesis ends the test that it is in, and then reports.
LIMIT_S = SECONDS + 200


@pytest.mark.timeout(LIMIT_S + 60)
def test_no_request_is_a_server_error(url: str, routes: set[str], tmp_path: Path):
    assert "/v1/chat/completions" in routes, "the server describes itself"
    program = Path(sys.executable).parent / "schemathesis"
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    run = subprocess.run(
        [program, "run", f"{url}/openapi.json", "--checks", checks, "--max-time", str(SECONDS), "--seed", "1"],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
