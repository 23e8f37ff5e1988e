"""Step-time curves of one rank, of several that share steps, and of a rank of tensor parallelism.

A curve is measured on this machine or modelled for a GPU. All others follow from it by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedConfig

from benchmarks.projections.gpus import SHARE_OF_BANDWIDTH, Gpu
from benchmarks.projections.modelled_step import ITEMSIZE, Setting, shares_of, step_seconds
from benchmarks.projections.network import Charges, Network
from benchmarks.projections.rank_cost import share_of
from lp.runner.step_times.measure import ACCEPTED, bushy_tree
from lp.step_cost import CACHED, DEPTH, Extras, StepTimes
from parallel.runners.partition import partition

# The numbers of rows of a modelled curve.
MODELLED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)


@dataclass(frozen=True)
class Machine:
    """What ranks run on.

    one: curve of a rank with the whole model. tensor: curve of a group that holds the model together by tensor
    parallelism, its collectives included. network: between ranks that share steps.
    """

    name: str
    one: StepTimes
    tensor: StepTimes
    network: Network


def shared_times(one: StepTimes, num_parts: int, exchange_s: float) -> StepTimes:
    """The curves that ranks which share steps would measure: of shared trees, and of trees that one of them computes.

    As in a measured curve, the largest part has the rows of whole chains, and each part feeds what another rank's part
    has had accepted. exchange_s: seconds of an exchange.
    """
    if num_parts == 1:
        return one
    chains = range(1, -(-one.rows[-1] // DEPTH) + 1)
    rows = [*range(1, DEPTH + 1), *(1 + DEPTH * num_parts * number for number in chains)]
    parts = [*range(1, DEPTH + 1), *(1 + DEPTH * number for number in chains)]
    seconds = tuple(one.at(part + ACCEPTED) + exchange_s for part in parts)
    return StepTimes(tuple(rows), seconds, num_parts, with_exchange(one, exchange_s), one.extras)


def largest_part(num_rows: int, num_ranks: int) -> int:
    """The rows of the rank with the most, if ranks share a step of so many rows.

    Besides its part of the tree it computes accepted tokens that another rank computed in the step before.
    """
    if num_ranks == 1:
        return num_rows
    return ACCEPTED + max(map(len, partition(bushy_tree(1, num_rows, num_rows), num_ranks)))


def with_exchange(one: StepTimes, exchange_s: float) -> StepTimes:
    """The curve of a rank that takes part in an exchange in each step."""
    return replace(one, seconds=tuple(seconds + exchange_s for seconds in one.seconds))


def tensor_times(one: StepTimes, config: PreTrainedConfig, dtype: torch.dtype, tp: int, network: Network) -> StepTimes:
    """The curve of a tensor-parallel group, from that of a rank with the whole model.

    Products take as much less time as the rank with the largest share has weights, which is the best that they could.
    Each collective of a layer is charged to the network. Raises ValueError if the model cannot be split so.
    """
    if tp == 1:
        return one
    whole, share = share_of(config, dtype), share_of(config, dtype, tp)
    part = share.multiplied / whole.multiplied

    def seconds(num_rows: int, took: float) -> float:
        moved = 2 * (tp - 1) / tp * share.sent * dtype.itemsize * num_rows
        return took * part + network.seconds(Charges(share.collectives, moved))

    taken = tuple(seconds(rows, took) for rows, took in zip(one.rows, one.seconds, strict=True))
    cached = one.extras.thousand_cached * share.kv_heads / whole.kv_heads
    return StepTimes(one.rows, taken, extras=replace(one.extras, thousand_cached=cached))


def modelled_times(gpu: Gpu, config: PreTrainedConfig, tp: int, host: Extras) -> StepTimes:
    """The curve of a tensor-parallel group of GPUs (benchmarks/projections/modelled_step.py), or of one for tp=1.

    host: seconds of the host for a step and a row. A sequence more costs nothing but the keys and values it reads.
    """
    share = shares_of(config, [tp])[tp]
    setting = Setting(gpu, CACHED, 0.0)
    seconds = tuple(step_seconds(share, tp, rows, setting) for rows in MODELLED_ROWS)
    read = share.cache_bytes(1000, ITEMSIZE) / (SHARE_OF_BANDWIDTH * gpu.memory_gb_per_s * 1e9)
    extras = Extras(host_step=host.host_step, host_row=host.host_row, thousand_cached=read)
    return StepTimes(MODELLED_ROWS, seconds, extras=extras)
