"""The number of ranks that parallel settings ask for, and the name of their mode."""

from __future__ import annotations

from launch.program.parallel_mode import mode_of, num_ranks
from parallel.mesh import Mode, ParallelSettings


def test_num_ranks() -> None:
    assert num_ranks(ParallelSettings(mode=Mode.single, ranks=4)) == 1
    assert num_ranks(ParallelSettings(lp=2, tp=2)) == 4


def test_mode_of() -> None:
    assert mode_of(ParallelSettings(lp=2, tp=2), 4) == "lp x tp"
    assert mode_of(ParallelSettings(mode=Mode.dp), 2) == "dp" and mode_of(ParallelSettings(mode=Mode.dp), 1) == "single"
    assert (
        mode_of(ParallelSettings(mode=Mode.tp, tp=3), 2) == "tp"
    )  # impossible: three-way tensor parallelism, two ranks
