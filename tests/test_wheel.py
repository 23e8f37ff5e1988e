"""The wheel: it has all that the programs need, and they run from it in a folder that has a launch.py, an lp.py and a
conf/ of its own. The environment has the wheel itself, and everything else from the one that the tests run in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.parallel.ranks import free_port
from tests.slow import exhaustive_except

ROOT = Path(__file__).resolve().parents[1]
# By folder of the checkout, where its files are in the wheel.
SHIPPED = {
    "lp": "lp",
    "parallel": "parallel",
    "launch": "launch",
    "conf": "launch/conf",
    "demo/python-11m": "launch/models/python-11m",
}
QUICK = ["model.compile=off", "step_times=off"]
# What a user's folder may have, and none of the processes may import.
OWN_MODULES = ("launch", "lp", "parallel", "demo", "tests")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [*build, f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("lookahead_parallel-*.whl")
    return found


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], env=environment(), check=True, capture_output=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "everything_else.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in OWN_MODULES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the user was imported')\n")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "serve.yaml").write_text("mine: 1\n")
    return tmp_path


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(programs: Path, folder: Path, *words: str) -> str:
    """Runs `lookahead` in a folder; returns its standard output."""
    command = [str(programs / "lookahead"), *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(programs: Path, folder: Path, *words: str) -> Iterator[str]:
    """Runs `lookahead serve`; yields its address."""
    port = free_port()
    command = [str(programs / "lookahead"), "serve", *words, f"server.port={port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
    try:
        end, address = time.monotonic() + 200, f"http://127.0.0.1:{port}"
        while not _is_ready(address):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.2)
        yield address
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_it_has_every_file_that_is_needed_and_takes_no_other_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "lookahead = launch.cli.main:program" in archive.read(entry_points).decode()
    listed = subprocess.run(["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout, whose files could be listed")
    needed = set()
    for path in listed.stdout.split():
        source = next(source for source in SHIPPED if path.startswith(f"{source}/"))
        needed.add(SHIPPED[source] + path.removeprefix(source))
    assert needed - names == set()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lp", "parallel", "launch"}
    for suffix in ("serve.yaml", "model.safetensors", "report.html.j2", "own_workload.jsonl", "host.cpp", "linear.h"):
        assert any(name.endswith(f"/{suffix}") for name in names), suffix


@pytest.mark.slow
def test_help_and_version_need_nothing_heavy(programs: Path, folder: Path) -> None:
    assert run(programs, folder, "--version").startswith("lookahead-parallel 0.")
    assert "--port" in run(programs, folder, "serve", "--help")
    assert "server.port=8000   (whole number)" in run(programs, folder, "serve", "--help-all")
    assert "workload=NAME" in run(programs, folder, "bench", "--help")


@pytest.mark.parametrize("ranks", exhaustive_except([[], ["--ranks", "2"]], []))
def test_it_generates_on_one_rank_and_on_two(programs: Path, folder: Path, ranks: list[str]) -> None:
    words = ["generate", "demo", *ranks, *QUICK, "prompt=def f(", "max_new_tokens=6", "format=json"]
    record = json.loads(run(programs, folder, *words))
    assert (len(record["token_ids"]), record["ranks"]) == (6, len(ranks) or 1)


@pytest.mark.slow
def test_it_serves_on_two_ranks(programs: Path, folder: Path) -> None:
    with serving(programs, folder, "demo", "--ranks", "2", *QUICK) as address:
        body = {"prompt": "def f(", "max_tokens": 5, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert len(httpx.get(f"{address}/status").json()["ranks"]) == 2
        assert httpx.get(f"{address}/version").json()["version"].startswith("0.")


@pytest.mark.exhaustive
def test_it_measures_a_sweep(programs: Path, folder: Path) -> None:
    small = ["workload.limit=1", "workload.max_new_tokens=4", "rounds=1", "baselines=[]", "output=out"]
    run(programs, folder, "bench", "demo", "--ranks", "2", "-m", "decode=lookahead", *small, *QUICK)
    lines = map(json.loads, (folder / "out" / "summary.jsonl").read_text().splitlines())
    assert sum(line["ranks"] == 2 for line in lines) == 1
    assert (folder / "out" / "report.html").is_file()
