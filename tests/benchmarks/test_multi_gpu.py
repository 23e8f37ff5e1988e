"""The proof on several GPUs, as it is started: by torchrun, here on CPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.multi_gpu import parse_arguments, told_failures
from tests.benchmarks.nodes import two_nodes
from tests.slow import exhaustive_except


def call(*arguments: str, num_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return subprocess.run(
        [*torchrun, "-m", "benchmarks.multi_gpu", "--device", "cpu", "--max-new-tokens", "12", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
    )


def states(page: str) -> dict[str, str]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1] for row in cells[2:]}


@pytest.mark.parametrize("num_ranks", exhaustive_except([2, 4], 2))
def test_rows_pass_or_say_why_they_were_not_run(num_ranks: int, tmp_path: Path) -> None:
    done = call("--rows", "exchange", "sums", "text", "prompt", "--output", str(tmp_path), num_ranks=num_ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    found = states((tmp_path / f"multi_gpu-{num_ranks}-ranks-cpu.md").read_text())
    skipped = {"exchange, nccl", "sums, nccl", *([] if num_ranks > 2 else ["text, lp x tp"])}
    assert {name for name, state in found.items() if state == "not run"} == skipped
    assert set(found.values()) == {"passed", "not run"} and len(found) == 11


@pytest.mark.exhaustive
def test_all_rows_are_run(tmp_path: Path) -> None:
    done = call("--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = states((tmp_path / "multi_gpu-2-ranks-cpu.md").read_text())
    assert found["lost rank"] == found["speed, tp"] == "passed" and "FAILED" not in found.values()


@pytest.mark.slow
def test_ranks_on_two_nodes_share_no_memory(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        ranks = [
            subprocess.Popen(
                node.command(
                    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number),
                    "--nproc-per-node", "1", "--master-addr", nodes[0].address, "--master-port", "29500",
                    "-m", "benchmarks.multi_gpu", "--device", "cpu", "--max-new-tokens", "12",
                    "--rows", "exchange", "sums", "text", "prompt", "--output", str(tmp_path),
                ),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for number, node in enumerate(nodes)
        ]  # fmt: skip
        said = [rank.communicate(timeout=270)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    page = (tmp_path / "multi_gpu-2-ranks-cpu.md").read_text()
    found = states(page)
    assert page.count("the ranks are on several hosts") == 2
    not_run = {name for name, state in found.items() if state != "passed"}
    lacking = {"exchange, nccl", "sums, nccl", "text, lp x tp"}
    assert not_run == {"exchange, shm", "sums, shm", *lacking} and "FAILED" not in found.values(), page


def test_the_row_of_lost_ranks_names_what_failed() -> None:
    report = "| phase |\n\nFAILED:\n\n- shm, 2 ranks: a stream was cut short\n"
    bar = "shm, 2 ranks:  50%|#####     | 1/2"
    assert told_failures(subprocess.CompletedProcess([], 1, report, bar)) == "- shm, 2 ranks: a stream was cut short"
    assert told_failures(subprocess.CompletedProcess([], 1, "", "ImportError: no httpx")) == "ImportError: no httpx"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "start it with torchrun"), (["--ray"], "--ray and --ranks N belong together")],
)
def test_a_start_without_ranks_is_told(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["multi_gpu", *arguments])
    with pytest.raises(SystemExit) as stopped:
        parse_arguments()
    assert stopped.value.code == 2 and message in capsys.readouterr().err
