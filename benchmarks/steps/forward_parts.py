"""Measures the parts of a forward pass: attention, matrix products, head and the rest.

Attention is run by itself, layer after layer, on the inputs that the layers had. Matrix products are marked for torch's
profiler; the last one of a forward is the head. The rest is the remaining time of a forward that runs without the
profiler: norms, rotary embeddings, activations, the cache, Python and, on a GPU, the wait for the host. So none of the
parts contains the profiler's own cost, which is high for code with many small operations. On a GPU, attention and
products are the time of their kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps.machine_rates import time_once
from lp.kv_cache.cache import KVCache, RowsOnly
from lp.model.attention import TreeStep
from lp.model.causal import CausalModel
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.source import ATTENTION, EXPERTS, PRODUCT, QUANTIZED, QUANTIZED_EXPERTS
from lp.model.current_step import running
from lp.model.fast_forward import SequenceRows
from lp.model.kernels import LayerAttention
from lp.tree import TokenTree

# The profiler's names of products with weights. Attention's own products have other names.
WEIGHT_PRODUCT = re.compile(r"aten::(linear|addmm|_grouped_mm)$|.*_gemm_|aoti_torch_\w+_(linear|addmm|mm)")
ROUNDS = 7
# Kinds of native instructions that multiply rows with weights.
PRODUCTS = PRODUCT, EXPERTS, QUANTIZED, QUANTIZED_EXPERTS


@dataclass(frozen=True)
class ForwardParts:
    """Seconds of one forward's parts. way: the variant's name.

    The rest may be slightly below zero, because the parts are measured separately.
    """

    way: str
    cached: int
    rows: int
    whole: float
    attention: float
    products: float
    head: float

    @property
    def rest(self) -> float:
        return self.whole - self.attention - self.products - self.head


@dataclass(kw_only=True)
class AttentionRecorder(TreeStep):
    """Records the call of attention in each layer, so that it can be repeated."""

    calls: list[Callable[[], Tensor]] = field(default_factory=list)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention, is_shared: bool = False
    ) -> Tensor:
        self.calls.append(partial(super().attend, layer, query, key, value, how, is_shared))
        return self.calls[-1]()


@torch.inference_mode()
def measure_parts(way: str, model: CausalModel, marked: CausalModel, cache: KVCache, tree: TokenTree) -> ForwardParts:
    """Takes the least of a few rounds, because other work on the machine only adds time.

    marked: the same model with marks for the profiler.
    """
    if isinstance(model.fast, NativeForward):
        return _native_parts(way, model.fast, cache, tree)
    num_rows = len(tree)
    forward = partial(model.forward, tree, cache, num_rows)
    profiled = partial(marked.forward, tree, cache, num_rows)
    attention = attention_alone(model, tree, cache)
    whole, alone, products = [], [], []
    for number in range(1 + ROUNDS):
        readings = _time(forward, model), _time_device(attention, model), product_times(profiled, model)
        if number:
            for taken, reading in zip((whole, alone, products), readings):
                taken.append(reading)
    head = min(times[-1] for times in products)
    matrices = min(sum(times[:-1]) for times in products)
    return ForwardParts(way, cache.length, num_rows, min(whole), min(alone), matrices, head)


def _native_parts(way: str, native: NativeForward, cache: KVCache, tree: TokenTree) -> ForwardParts:
    """The least of a few rounds, by the times that the native code takes itself."""
    cache.reserve(len(tree))
    rounds = [native.times(tree, cache, len(tree)) for _ in range(1 + ROUNDS)][1:]
    whole = min(sum(seconds for _, seconds in one) for one in rounds)
    attention = min(sum(seconds for kind, seconds in one if kind == ATTENTION) for one in rounds)
    products = [[seconds for kind, seconds in one if kind in PRODUCTS] for one in rounds]
    head = min(times[-1] for times in products)
    others = min(sum(times[:-1]) for times in products)
    return ForwardParts(way, cache.length, len(tree), whole, attention, others, head)


def _time(run: Callable[[], object], model: CausalModel) -> float:
    run()
    return time_once(run, model.device)


def attention_alone(model: CausalModel, tree: TokenTree, cache: KVCache) -> Callable[[], None]:
    """A call that repeats the attention of all layers over this tree, on the inputs of each layer in a forward."""
    model.memory.reserve([(cache, len(tree))])
    own, tokens = model.to_device([SequenceRows(tree, cache, 1)])
    step = AttentionRecorder(own.kind, parts=own.parts)
    with running(step):
        model.model(
            input_ids=tokens[None], position_ids=step.positions[None],
            past_key_values=RowsOnly(model.num_layers, step.positions), use_cache=True, logits_to_keep=1,
        )  # fmt: skip

    def run() -> None:
        for call in step.calls:
            call()

    return run


def _time_device(run: Callable[[], None], model: CausalModel) -> float:
    """Seconds of a run; on a GPU only of its kernels, as graphs do not pay for starting them one by one."""
    if model.device.type == "cpu":
        return _time(run, model)
    return sum(event.device_time_total for event in _profiled(run, model) if not is_of_host(event)) / 1e6


def product_times(run: Callable[[], object], model: CausalModel) -> list[float]:
    """Seconds of each product with weights, in the order of their execution."""
    outermost = [event for event in _profiled(run, model) if is_of_host(event) and is_outermost_product(event)]
    on_gpu = model.device.type == "cuda"
    return [(event.device_time_total if on_gpu else event.cpu_time_total) / 1e6 for event in outermost]


def is_of_host(event: FunctionEvent) -> bool:
    """Whether the event is an operation and not one of the kernels that it starts on a GPU."""
    return event.device_type == DeviceType.CPU


def is_outermost_product(event: FunctionEvent) -> bool:
    """Whether the event is a product with weights that is not part of another one."""
    above = event.cpu_parent
    while above is not None:
        if WEIGHT_PRODUCT.match(above.name):
            return False
        above = above.cpu_parent
    return WEIGHT_PRODUCT.match(event.name) is not None


def _profiled(run: Callable[[], object], model: CausalModel) -> list[FunctionEvent]:
    on_gpu = model.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    run()
    with profile(activities=activities, acc_events=True) as profiler:
        time_once(run, model.device)
    return sorted(profiler.events() or [], key=lambda event: event.time_range.start)
