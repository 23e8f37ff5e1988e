"""The emulated GPU refuses what a GPU refuses, and counts what a GPU would do."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from tests.cuda_on_cpu.graphs import MemoryIsGone
from tests.cuda_on_cpu.launches import Launches, NoHostAccess, observed

pytestmark = pytest.mark.usefixtures("cuda")


def capture(run: Any) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def test_numbers_are_real_and_devices_do_not_mix() -> None:
    values = torch.arange(6, device="cuda").view(2, 3)
    assert values.device == torch.device("cuda", 0) and values[1].sum().item() == 12
    values[:, 1] = 7
    assert values.cpu().tolist() == [[0, 7, 2], [3, 7, 5]]
    with pytest.raises(RuntimeError, match="one device"):
        _ = values + torch.arange(3)
    with pytest.raises(RuntimeError, match="one device"):
        _ = values + values.to("cuda:1")


def test_launches_copies_and_waits_are_counted() -> None:
    with observed(Launches()) as counted:
        values = torch.ones(4).to("cuda")
        (values.view(2, 2) * 2).add_(1).cpu()
        bool(values.sum() > 3)
    assert (counted.kernels, counted.to_device, counted.to_host, counted.waits) == (4, 1, 1, 1)


def test_a_replay_reads_memory_anew_and_numbers_of_the_host_are_frozen() -> None:
    given, added = torch.ones(3, device="cuda"), 1
    graph, result = capture(lambda: (given.view(3) * 2)[1:] + added)
    assert result.isnan().all()  # capturing computes nothing
    added = 5
    given[2] = 10
    graph.replay()
    assert result.tolist() == [3, 21]


def test_a_replay_fails_if_its_memory_is_gone() -> None:
    held = {"weight": torch.ones(3, device="cuda")}
    graph, _ = capture(lambda: held["weight"] * 2)
    graph.replay()
    held.clear()
    gc.collect()
    with pytest.raises(MemoryIsGone):
        graph.replay()


@pytest.mark.parametrize(
    "access", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x.cpu(), lambda x: x + torch.ones(2).cuda()]
)
def test_what_the_host_takes_part_in_cannot_be_captured(access: Any) -> None:
    values = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="while a graph is captured"):
        capture(lambda: access(values))
    with observed(NoHostAccess()), pytest.raises(AssertionError):
        access(values)


def test_a_graph_belongs_to_the_current_device() -> None:
    values = torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="is on cuda:1"):
        capture(lambda: values + 1)
    with torch.cuda.device(1):
        capture(lambda: values + 1)
