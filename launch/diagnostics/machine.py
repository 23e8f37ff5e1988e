"""What this machine has: its processor, memory and GPUs, with the speed of their memories, measured briefly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import torch

from launch.diagnostics.findings import Finding
from launch.sweep.ranks import usable_cores
from lp.platform.hardware import forced_tf32, why_no_gpu
from lp.platform.processor import num_cores, processor_features, processor_name

SECTION, MEMORY_SPEED = "machine", "memory speed"
# What the kernels for a CPU are compiled for (lp/model/cpu/kernels), the best last, by the names in /proc/cpuinfo.
INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX BF16"}
# Bytes that are read to measure a memory's speed: more than a cache holds. Seconds that are spent on it.
READ_BYTES, MEASURE_S = 256 << 20, 0.4


def inspect(read_bytes: int = READ_BYTES) -> Iterator[Finding]:
    yield Finding(SECTION, "processor", processor_name())
    threads, cores = num_cores(), len(usable_cores())
    yield Finding(SECTION, "cores", f"{cores} usable, with {threads} hardware threads", cores)
    yield instructions(processor_features())
    memory = psutil.virtual_memory()
    text = f"{memory.total / 1e9:.1f} GB, of which {memory.available / 1e9:.1f} GB are available"
    yield Finding(SECTION, "memory", text, {"total": memory.total, "available": memory.available})
    if memory.available > 4 * read_bytes:
        speed = memory_speed(read_bytes, threads)
        yield Finding(SECTION, MEMORY_SPEED, f"{speed / 1e9:.1f} GB/s, read by {threads} threads", speed)
    yield from gpus(read_bytes)


def instructions(features: str) -> Finding:
    """The instruction sets that the kernels for a CPU can use here. features: see `processor_features`."""
    if ":" not in features:
        return Finding(SECTION, "instructions", "unknown (no /proc/cpuinfo)", [])
    flags = features.split()
    found = [title for flag, title in INSTRUCTIONS.items() if flag in flags]
    if not found:
        return Finding(SECTION, "instructions", "none that the kernels use (AVX2, AVX-512, AMX)", [])
    half = "model.dtype=bfloat16 uses the matrix unit" if "AMX BF16" in found else ""
    return Finding(SECTION, "instructions", ", ".join(found) + (f"; {half}" if half else ""), found)


def memory_speed(num_bytes: int, threads: int) -> float:
    """Bytes per second that so many threads together read, as weights are read in a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _read_speed(num_bytes)
    finally:
        torch.set_num_threads(before)


def _read_speed(num_bytes: int) -> float:
    matrix = torch.ones(1024, num_bytes // 4096)
    vector = torch.ones(matrix.shape[1])
    return matrix.nbytes / best_s(lambda: torch.mv(matrix, vector))


def best_s(work: Callable[[], object], limit_s: float = MEASURE_S) -> float:
    """The shortest time of some work, which is repeated for a while."""
    work()
    best, end = float("inf"), time.perf_counter() + limit_s
    while (begin := time.perf_counter()) < end or best == float("inf"):
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def gpus(num_bytes: int) -> Iterator[Finding]:
    """The GPUs that torch can use, and why it cannot if there are some that it cannot use."""
    if reason := why_no_gpu():
        yield Finding(SECTION, "GPU", reason, is_broken=True)
        return
    if not torch.cuda.is_available():
        yield Finding(SECTION, "GPU", "none: the model is computed on the CPU", [])
        return
    if name := forced_tf32():
        text = f"{name}=1 has float32 computed in TF32: unset it, or use model.dtype=bfloat16"
        yield Finding(SECTION, "float32", text, name, is_broken=True)
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = torch.cuda.mem_get_info(device)
        speed = gpu_speed(device, min(num_bytes, free // 4))
        text = f"{torch.cuda.get_device_name(device)}, {total / 1e9:.1f} GB ({free / 1e9:.1f} GB free)"
        value = {"name": torch.cuda.get_device_name(device), "total": total, "free": free, "bytes_per_s": speed}
        yield Finding(SECTION, str(device), f"{text}, {speed / 1e9:.0f} GB/s within it", value)


def gpu_speed(device: torch.device, num_bytes: int) -> float:
    """Bytes per second that a GPU reads and writes when it copies within its own memory."""
    return 2 * num_bytes / copy_s(device, device, num_bytes)


def copy_s(source: torch.device, target: torch.device, num_bytes: int) -> float:
    """The shortest time in which so many bytes are copied from one GPU to another, or within one."""
    sent = torch.zeros(num_bytes, dtype=torch.uint8, device=source)
    received = torch.empty(num_bytes, dtype=torch.uint8, device=target)

    def copy() -> None:
        received.copy_(sent)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)

    return best_s(copy)
