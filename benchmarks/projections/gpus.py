"""Published figures of GPUs and their links, each with its source, for projections to devices that are not here."""

from __future__ import annotations

from dataclasses import dataclass

# gpt-fast (github.com/meta-pytorch/gpt-fast, README): bfloat16, one sequence, A100-80GB. It names 1,700 GB/s as the
# bandwidth that can be had, 83% of the 2,039 of the data sheet, and 104.9 tokens per second of Llama-2-7B, 93.8 of
# Llama-3.1-8B: 1.7 and 1.8 ms more than reading 13.3 and 15.0 GB takes, which is 55 us for each of 32 layers.
SHARE_OF_BANDWIDTH = 0.83
LAYER_OVERHEAD_US = 55.0
# Of the data sheet's FLOP/s, for products of 64 rows and more. An assumption.
SHARE_OF_FLOPS = 0.6
# Tokens per second that gpt-fast gives for tensor parallelism over NVLink, by the number of devices.
GPT_FAST = {
    "llama-7b": {1: 104.9, 2: 168.84, 4: 254.02, 8: 328.43},
    "llama-3.1-8b": {1: 93.83, 2: 149.10, 4: 217.21, 8: 276.01},
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. memory_gb_per_s, tflops: of the data sheet; bfloat16, dense, sums in float32.

    all_reduce_us: of a small all-reduce, by the number of devices. link_gb_per_s: of each device's link, one way, as it
    can be had. sources: where the figures are from.
    """

    name: str
    memory_gb_per_s: float
    tflops: float
    all_reduce_us: dict[int, float]
    link_gb_per_s: float
    sources: tuple[str, ...]


A100_NVLINK = Gpu(
    "A100-80GB SXM, NVLink",
    2039,
    312,
    {2: 6, 4: 6.5, 8: 8},
    200,
    (
        "memory, FLOP/s: NVIDIA's data sheet of the A100",
        "all-reduce: what gpt-fast's speeds leave for it, means of its two models (4.7 and 7.1, 4.3 and 8.8, 5.6 and "
        "10 us on 2, 4 and 8 devices)",
        "link: 300 GB/s one way in the data sheet, two thirds assumed",
    ),
)
H200 = Gpu(
    "H200 SXM",
    4800,
    989,
    {},
    300,
    ("memory, FLOP/s: NVIDIA's data sheet of the H200",),
)
GPUS = (
    Gpu(
        "A100-80GB PCIe, no NVLink",
        1935,
        312,
        {2: 13, 4: 19, 8: 31},
        20,
        (
            "memory, FLOP/s: NVIDIA's data sheet of the A100",
            "all-reduce: an assumption, 10 us and half as much for a hop of the ring as the RTX 3090s below, since "
            "these cards reach one another directly",
            "link: PCIe 4.0 x16, 32 GB/s one way, of which about two thirds can be had",
        ),
    ),
    Gpu(
        "H100 SXM, NVLink",
        3352,
        989,
        {2: 6, 4: 7, 8: 8},
        300,
        (
            "memory, FLOP/s: NVIDIA's data sheet of the H100",
            "all-reduce: 6 us on two H100 in CUDA graphs (github.com/NVIDIA/nccl/issues/1259); on 4 and 8 as much "
            "more as gpt-fast's A100s",
            "link: 450 GB/s one way in the data sheet, two thirds assumed",
        ),
    ),
    Gpu(
        "RTX 4090, no NVLink",
        1008,
        165.2,
        {2: 16, 4: 29, 8: 54},
        10,
        (
            "memory, FLOP/s: NVIDIA's white paper on the Ada architecture",
            "all-reduce: 54 us on eight RTX 3090, which like the 4090 reach one another through the host's memory "
            "(github.com/NVIDIA/nccl/issues/1439); on 2 and 4 by the hops of a ring, 10 us + 3.1 us a hop",
            "link: PCIe 4.0 x16 through the host's memory, 10 GB/s assumed",
        ),
    ),
)
# Milliseconds of a step by its rows after 1,024 cached tokens, as one H100 takes them: of a model in bfloat16, and of
# its copy in int4 (benchmarks/results/gpu-speed-h100.md).
H100_SHAPE = "llama-3.1-8b"
H100_MS = {
    "bfloat16": {1: 6.379, 4: 6.361, 16: 6.461, 64: 6.947, 128: 7.528},
    "int4": {1: 3.583, 4: 3.625, 16: 3.913, 64: 6.585, 128: 9.945},
}
