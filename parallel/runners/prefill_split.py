"""The tokens of a long prompt, computed by several replicas at the same time.

A layer's later tokens need the keys and values that the same layer has of the earlier ones, and nothing else of these.
So each replica computes consecutive tokens, and all go through the layers side by side: before the attention of a layer
a replica sends the keys and values of its own tokens to those that have later tokens, and receives those of the earlier
ones. This is context parallelism for prefill over replicas.
"""

from __future__ import annotations

import torch

from lp.kv_cache.cache import KVCache
from lp.kv_cache.contiguous import ContiguousCache
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.tree import NO_ROWS, chain
from parallel.runners.copying import Copying
from parallel.runners.shares import Split


@torch.inference_mode()
def compute_part(copying: Copying, split: Split, sequence: TokenSequence) -> None:
    """Computes this replica's part, and gets what is before it. Nothing happens if it has none.

    Raises RankLost and EpochOver; nothing is cached then that was not before.
    """
    if copying.replica not in split.replicas:
        return
    place, start = split.replicas.index(copying.replica), split.bounds[0]
    begin, end = split.bounds[place : place + 2]
    inner, model = copying.inner, copying.inner.model
    cache = inner.committed_cache(sequence)
    if cache.length < start:  # a few tokens that were not worth a copy, or some that have been evicted
        inner.launch([StepInput(sequence, NO_ROWS, start)])()
        cache = inner.committed_cache(sequence)
    cache.length = start
    cache.reserve(end - start)
    if not cache.is_written:
        assert isinstance(cache, ContiguousCache), "an arena's layers are always there"
        cache.begin(model.cache_shapes, torch.empty(0, dtype=model.dtype))
    passed: set[int] = set()

    def pass_on(layer: int) -> None:
        if layer not in passed:  # several layers may read the same keys and values
            passed.add(layer)
            _pass_on(copying, split, place, cache, layer)

    cache.length = begin
    try:
        model.forward_by_layer(chain(sequence.tokens[begin:end]), cache, pass_on)
        copying.messages.synchronize()  # on a GPU, nothing has arrived before
    except BaseException:
        cache.length = start
        raise
    cache.keep(range(end - begin))


def _pass_on(copying: Copying, split: Split, place: int, cache: KVCache, layer: int) -> None:
    """Sends one layer of this replica's part to those behind it, and receives that of those before it.

    On GPUs both are only launched. NCCL sends on a stream of each pair of ranks, beside the attention that follows;
    the stream of the forward waits for what it receives.
    """
    messages, model = copying.messages, copying.inner.model
    if behind := split.replicas[place + 1 :]:
        numbers = cache.read_layer(layer, *split.bounds[place : place + 2])
        for replica in behind:
            messages.send(numbers, copying.rank_in(replica))
    for before, replica in enumerate(split.replicas[:place]):
        begin, end = split.bounds[before : before + 2]
        size = (end - begin) * model.cache_shapes[layer].numbers
        cache.write_layer(layer, begin, end, messages.receive((size,), model.dtype, copying.rank_in(replica)))
