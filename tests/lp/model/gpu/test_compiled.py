"""What Triton's compiler makes of the kernels for five kinds of GPUs: hardly any spills, and few enough registers.

Nothing runs. `python -m benchmarks.kernels` shows all figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.shared.compiled_kernels import ARCHITECTURES, cuobjdump, variants
from lp.platform.build import missing_triton
from tests.slow import slow_except

pytestmark = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton() or "triton is there")


@pytest.fixture(scope="module", autouse=True)
def has_tools() -> None:
    try:
        cuobjdump()
    except FileNotFoundError as error:
        pytest.skip(str(error))


QUICK = 90, torch.bfloat16
SOME = [
    *((architecture, torch.bfloat16) for architecture in ARCHITECTURES),
    (86, torch.float32), (90, torch.float32), (86, torch.float16),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "dtype"), slow_except(SOME, QUICK), ids=str)
def test_kernels_keep_within_the_limits(architecture: int, dtype: torch.dtype) -> None:
    faults = {
        variant.name: fault
        for variant in variants(dtype, architecture)
        if (fault := variant.fault(variant.compile(architecture), architecture))
    }
    assert not faults


def test_a_move_keeps_what_it_loads_in_its_own_thread() -> None:
    """Shared memory would mean that another thread stores it."""
    (mover,) = [one for one in variants(torch.bfloat16, 90) if one.name == "moves of keys and values"]
    assert mover.compile(90).shared == 0


@pytest.mark.parametrize("name", ["product of 16 rows, inputs side by side", "attention, heads of 128, 1 rows"])
def test_the_last_program_sees_what_the_others_have_stored(name: str) -> None:
    """All threads have stored before one of them counts the program, and load after it has seen the count."""
    (variant,) = [one for one in variants(torch.bfloat16, 90) if one.name == name]
    before, after = variant.assembly(90).split("atom.global.gpu.acq_rel.add.u32")
    assert "bar.sync" in before[before.rindex("st.global") :]
    assert "bar.sync" in after[: after.index("ld.global")]


@pytest.mark.slow
def test_the_command_writes_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kernels", "--output", str(tmp_path)]
    done = subprocess.run(
        [*command, "--architectures", "90", "--dtypes", "bfloat16"], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("kernels-triton-*.md")
    assert "| product with experts" in page.read_text() and "BEYOND" not in page.read_text()
    (figures,) = tmp_path.glob("*.json")
    assert {one["sm"] for one in json.loads(figures.read_text())["kernels"]} == {90}
    refused = subprocess.run([*command, "--architectures", "7"], capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2 and "'7' is not a list of 80, 86, 89, 90, 100" in refused.stderr
