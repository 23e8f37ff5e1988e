"""Finds a browser for the tests of the page, or installs one: python -m tests.page.install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SYSTEM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Lines of a failed program's output that are shown.
LAST_LINES = 5


def find_system_browser() -> str | None:
    """The path of a Chromium that the system has; None lets playwright use its own."""
    return next((path for name in SYSTEM_NAMES if (path := shutil.which(name))), None)


def main() -> int:
    """Returns 0 if there is a browser now. Otherwise prints why each way has failed."""
    if has_browser():
        return 0
    reasons = [_run(sys.executable, "-m", "playwright", "install", "--only-shell", "chromium")]
    if has_browser():
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get"):
        reasons.append(_run("apt-get", "install", "--yes", "--quiet", "chromium"))
        if has_browser():
            return 0
    else:
        reasons.append("apt-get needs root, so it was not tried")
    print("There is no browser for the tests of the page. Install Chromium, then try again.", file=sys.stderr)
    for reason in reasons:
        print(reason, file=sys.stderr)
    return 1


def has_browser() -> bool:
    """Whether the system has a Chromium, or playwright has installed its own."""
    if find_system_browser():
        return True
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


def _run(*command: str) -> str:
    """Runs a program, and returns what it was and the end of what it said."""
    print("running", *command, flush=True)
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = "\n".join(ended.stdout.strip().splitlines()[-LAST_LINES:])
    return f"{' '.join(command)} ended with {ended.returncode}:\n{said}"


if __name__ == "__main__":
    sys.exit(main())
