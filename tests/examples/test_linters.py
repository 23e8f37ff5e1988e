"""The tools of other projects find no fault in the examples. Tools that are not installed are skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.commands import DEPLOY

SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sbatch"))
UNIT = DEPLOY / "systemd" / "lookahead-parallel.service"


def run(*command: str | Path) -> str:
    """Returns the output of a tool. Fails with that output if the tool finds a fault."""
    name = str(command[0])
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_reads_a_batch_script(script: Path):
    run("bash", "-n", script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_of_a_batch_script(script: Path):
    run("shellcheck", script)


def test_hadolint_of_the_dockerfile():
    run("hadolint", DEPLOY / "docker" / "Dockerfile")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a Python and a folder of this machine, because systemd checks that they exist."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/lookahead-parallel/.venv/bin/python", sys.executable)
    path = tmp_path / UNIT.name
    path.write_text(text.replace("/opt/lookahead-parallel", str(DEPLOY.parents[1])))
    return path


def test_systemd_takes_the_unit(unit: Path):
    said = run("systemd-analyze", "verify", "--man=no", unit)
    assert unit.name not in said, "a setting is unknown or malformed"


def test_the_unit_is_hardened(unit: Path):
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    assert (level := re.search(r"Overall exposure level for \S+: ([\d.]+)", said))
    assert float(level[1]) < 3
