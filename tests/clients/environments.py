"""Makes the environments of clients, one for each, and says why one of them cannot be had.

An environment sees the packages of the project's own environment, such as pytest and torch, unless the client needs
another version of them; pip then installs that version beside the client.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
# Seconds after which pip is given up.
INSTALL_LIMIT_S = 900


class Environment:
    """The environment of one client. reason: why the client could not be installed; None if it was."""

    def __init__(self, folder: Path, client: str):
        self.client = client
        self.folder = folder / client
        self.python = self.folder / "bin" / "python"
        self.reason: str | None = None

    def make(self) -> None:
        """Creates the environment and installs the client, unless that has been done with the same requirements."""
        requirements = REQUIREMENTS / f"{self.client}.txt"
        stamp = self.folder / f".installed-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
        if stamp.exists():
            return
        venv.create(self.folder, clear=True, with_pip=True)
        own = Path(self._ask("import sysconfig; print(sysconfig.get_path('purelib'))"))
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.reason = self._install(requirements)
        if self.reason is None:
            stamp.touch()

    def _install(self, requirements: Path) -> str | None:
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        try:
            pip = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"pip took more than {INSTALL_LIMIT_S} s"
        if pip.returncode == 0:
            return None
        lines = [line for line in pip.stderr.splitlines() if line.startswith("ERROR:")] or pip.stderr.splitlines()
        return f"pip failed: {lines[-1] if lines else 'it said nothing'}"

    def _ask(self, code: str) -> str:
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def environment_of(variables: dict[str, str]) -> dict[str, str]:
    """The environment variables of a client's process: nothing of it may look for a network."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
