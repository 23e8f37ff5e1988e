"""torch.cuda for the emulated devices: their number and memory, the current device of each thread, streams, graphs."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lp.model import compilation
from lp.platform import build as kernels
from tests.cuda_on_cpu import gpu
from tests.cuda_on_cpu.graphs import Recording
from tests.cuda_on_cpu.paged import make_paged

NUM_DEVICES = 2
MEMORY = 4_000_000_000

_thread = threading.local()


def current_device() -> int:
    return getattr(_thread, "device", 0)


class Device:
    """torch.cuda.device: makes a device the thread's current one."""

    def __init__(self, device: Any):
        self.index = device if isinstance(device, int) else torch.device(device).index or 0

    def __enter__(self) -> None:
        self._before = current_device()
        _thread.device = self.index

    def __exit__(self, *reason: Any) -> None:
        _thread.device = self._before


class Stream:
    """Everything is done at once, so there is nothing to wait for."""

    def __init__(self, device: Any = None):
        self.device = torch.device("cuda", current_device() if device is None else Device(device).index)

    def wait_stream(self, other: Stream) -> None: ...

    def synchronize(self) -> None:
        gpu.wait()

    def __enter__(self) -> None: ...

    def __exit__(self, *reason: Any) -> None: ...


class Event:
    """An event is over as soon as it is recorded, but only who waits for it has what was copied to the host."""

    def __init__(self, enable_timing: bool = False):
        self._is_timed = enable_timing

    def record(self, stream: Any = None) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Returns milliseconds, as the real one does."""
        assert self._is_timed and end._is_timed
        return 1e3 * (end._at_s - self._at_s)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        gpu.wait()


class CUDAGraph:
    """torch.cuda.CUDAGraph. num_captured: of all graphs, since the fixture began. last: the recording of the last."""

    num_captured = 0
    last: Recording
    recording: Recording

    def replay(self) -> None:
        self.recording.replay()


class graph:  # torch's name
    """torch.cuda.graph: captures the operations of its body on the thread's current device."""

    def __init__(self, cuda_graph: CUDAGraph, **_: Any):
        self._graph = cuda_graph
        cuda_graph.recording = Recording(torch.device("cuda", current_device()))

    def __enter__(self) -> None:
        gpu.observers.append(self._graph.recording)

    def __exit__(self, kind: Any, *reason: Any) -> None:
        gpu.observers.remove(self._graph.recording)
        if kind is None:
            self._graph.recording.finish()
            CUDAGraph.num_captured += 1
            CUDAGraph.last = self._graph.recording


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces what torch.cuda says and does, until the test ends. Triton is missing until triton_kernels adds it, and
    forwards are made of operations of torch in place of its kernels. No products are timed.
    """
    monkeypatch.setattr(kernels, "missing_triton", lambda: "this test runs without it")
    monkeypatch.setattr(compilation, "make_fused", make_paged)
    monkeypatch.setattr(compilation, "time_on_gpu", None)
    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: NUM_DEVICES,
        "current_device": current_device,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "emulated",
        "get_device_properties": lambda device=None: SimpleNamespace(
            L2_cache_size=4096, shared_memory_per_block_optin=232448
        ),
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "current_stream": Stream,
        "is_current_stream_capturing": lambda: any(getattr(one, "is_capturing", False) for one in gpu.observers),
        "synchronize": lambda device=None: gpu.wait(),
        "empty_cache": lambda: None,
        "stream": lambda stream: stream,
        "device": Device,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    CUDAGraph.num_captured = 0
