"""guidellm: a short run of its own benchmark, unmodified, in which no request may fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.importing import imported

imported("guidellm")
TOKENIZER = Path(__file__).parents[2] / "demo" / "python-11m"  # makes prompts of this many tokens or so
NUM_REQUESTS = 6


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_a_short_run(url: str, model: str, route: str, tmp_path: Path):
    result = tmp_path / "benchmarks.json"
    backend = {"kind": "openai_http", "target": url, "model": model, "request_format": route}
    settings = {
        "backend": json.dumps(backend),
        "profile": "kind=concurrent,streams=2",
        "constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "data": "kind=synthetic_text,prompt_tokens=24,output_tokens=12",
        "tokenizer": f"kind=hf_auto,model={TOKENIZER}",
        "output": f"kind=json,path={result}",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    totals = json.loads(result.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals
