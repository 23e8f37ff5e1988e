"""NCCL with one rank: its collectives run on the current stream, and inside a graph, without the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import HashStore, is_nccl_available

from parallel.comm.process_group import ProcessGroupCollectives

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]


@pytest.fixture
def collectives() -> Iterator[ProcessGroupCollectives]:
    if not is_nccl_available():
        pytest.skip("this torch has no NCCL")
    made = ProcessGroupCollectives(HashStore(), [0], 0, "nccl", torch.device("cuda", 0), 30.0)
    yield made
    made.close()


def test_one_rank_adds_up_and_gathers(collectives: ProcessGroupCollectives) -> None:
    values = torch.arange(12.0, device="cuda").view(3, 4)
    summed = collectives.all_reduce(values.clone())
    gathered = collectives.all_gather(values)
    collectives.synchronize()
    assert torch.equal(summed, values) and torch.equal(gathered, values[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_collectives_are_captured(dtype: torch.dtype, collectives: ProcessGroupCollectives) -> None:
    values = torch.ones(64, 256, dtype=dtype, device="cuda")
    collectives.all_reduce(values.clone())
    collectives.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = collectives.all_gather(collectives.all_reduce(values * 2))
    for number in (3, 5):
        values.fill_(number)
        graph.replay()
        collectives.synchronize()
        assert (result == 2 * number).all() and result.shape == (1, 64, 256)
    del graph  # a communicator does not end before the graphs that use it
