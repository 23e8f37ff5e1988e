"""Runs an item in a process of its own, with a limit, and reads what it wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.plan import CHECKOUT, FOLDER, Item
from benchmarks.real.child import environment

# The last lines of an item's output that a report shows, and the longest that one of them may be.
TAIL_LINES = 40
TAIL_CHARACTERS = 200
# Seconds between a polite request to end and the end.
GRACE_S = 2.0


class ItemFailed(ValueError):
    """An item that was stopped, crashed or found faults. output: its last lines."""

    def __init__(self, reason: str, output: str = ""):
        super().__init__(reason)
        self.output = output


def run_item(item: Item, limit_s: float) -> dict[str, Any]:
    """What an item has found, as JSON values: see read_results. limit_s: seconds left for it. Raises ItemFailed."""
    with TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        command = [sys.executable, *(part.replace(FOLDER, folder) for part in item.command)]
        code, output = run_limited(command, limit_s)
        failing = failed_tests(Path(folder))
        if code is None:
            raise ItemFailed(f"stopped at its limit of {limit_s:.0f} s", output)
        if failing:
            raise ItemFailed(f"{len(failing)} tests failed: {', '.join(failing[:6])}", output)
        if code:
            ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            said = next((line for line in reversed(output.splitlines()) if line.strip()), "it said nothing")
            raise ItemFailed(f"{ended}: {said}", output)
        return read_results(Path(folder)) | {"output": output}


def run_limited(command: list[str], limit_s: float, whole: bool = False) -> tuple[int | None, str]:
    """Runs a command in this checkout. Returns its exit code, None if it was stopped, and its last lines.

    Processes that the command has started are stopped with it. whole: returns all of the output.
    """
    with TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        path = Path(folder) / "output"
        with path.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environment(PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | None = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(limit_s)
            finally:
                _stop_all(process)
        text = path.read_text(encoding="utf-8", errors="replace")
        return code, text if whole else _tail(text)


def _stop_all(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it has started: first politely, as a GPU is given back better by an orderly end."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 0.0)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        end = time.monotonic() + wait_s
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
    process.wait()


def _tail(text: str) -> str:
    """The last lines, of which a progress bar's are only the last state."""
    lines = [line.rpartition("\r")[2][:TAIL_CHARACTERS].rstrip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line][-TAIL_LINES:])


def read_results(folder: Path) -> dict[str, Any]:
    """summary: one line. text: what the item's Markdown says. data: its JSON figures. Each as far as it is there."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.md"))[:1]:
        found["text"] = path.read_text(encoding="utf-8").partition("\n")[2].strip()
    for path in sorted(folder.glob("*.json"))[:1]:
        found["data"] = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found["data"], dict) and "summary" in found["data"]:
            found["summary"] = found["data"]["summary"]
    for path in folder.glob("*.xml"):
        found["summary"] = _count_tests(path)
    return found


def _count_tests(path: Path) -> str:
    suite = next(ElementTree.parse(path).getroot().iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    reasons = {found.get("message", "") for found in suite.iter("skipped")}
    why = f" ({'; '.join(sorted(reasons))[:200]})" if skipped else ""
    return f"{total - skipped} tests passed" + (f", {skipped} skipped{why}" if skipped else "")


def failed_tests(folder: Path) -> list[str]:
    """The names of the tests that failed, if the item ran any and came to its end."""
    with suppress(ElementTree.ParseError):
        return [
            str(case.get("name"))
            for path in folder.glob("*.xml")
            for case in ElementTree.parse(path).getroot().iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
    return []
