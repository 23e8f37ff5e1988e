"""llama.cpp's server as a compared engine, without drafts and with each kind of n-gram drafts that it has.

The server gets token ids and gives token ids; its own clock gives the seconds, so HTTP is not counted.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from benchmarks.peer_engines.base import PeerPrompt, PeerText, Unavailable
from benchmarks.peer_engines.llama_programs import CACHE_OPTIONS, TIMEOUT_S, how_it_ended, last_line, run

START_S = 120
DRAFTS_OPTION = re.compile(r"--spec-type\s+(\S+)")


def kinds_of_drafts(program: Path) -> list[str]:
    """The kinds of n-gram drafts that this version of the server has. Raises Unavailable if it does not run."""
    printed, _ = run([str(program), "--help"], program.name)
    found = DRAFTS_OPTION.search(printed)
    return [kind for kind in (found[1].split(",") if found else []) if kind.startswith("ngram-")]


class ServerPeer:
    """A server with one way to draft, started with the first text. kind: of drafts; None decodes without."""

    def __init__(self, program: Path, weights: Path, dtype: str, threads: int, context: int, kind: str | None):
        self.name = f"llama.cpp, server, {kind or 'plain'}"
        self._command = [str(program), "-m", str(weights), "-t", str(threads), "-c", str(context), "-np", "1"]
        self._command += [
            "--host",
            "127.0.0.1",
            *CACHE_OPTIONS.get(dtype, []),
            *(["--spec-type", kind] if kind else []),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        if self._process is None:
            self._start()
        body = {
            "prompt": prompt.tokens,
            "n_predict": max_new_tokens,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        answer = self._post("/completion", body)
        timings = answer["timings"]
        return PeerText(
            num_tokens=timings["predicted_n"],
            num_first=1,
            prompt_s=timings["prompt_ms"] / 1e3,
            decode_s=timings["predicted_ms"] / 1e3,
            tokens=answer["tokens"],
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._said.close()
            self._process = None

    def _start(self) -> None:
        """Raises Unavailable if the server does not answer in time."""
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._said = TemporaryFile()  # noqa: SIM115 (closed with the server)
        try:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(port)],
                stdout=self._said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            self._said.close()
            raise Unavailable(f"{self.name} cannot be started: {error.strerror}") from error
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if (code := self._process.poll()) is not None:
                raise Unavailable(f"{self.name} {how_it_ended(code)}: {self._last_said()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} did not answer within {START_S} s")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self.name} did not answer ({error}): {self._last_said()}") from error

    def _last_said(self) -> str:
        self._said.seek(0)
        return last_line(self._said.read().decode(errors="replace"))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
