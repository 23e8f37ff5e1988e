"""CUDA graphs of a forward that has collectives in it: all ranks have a graph, or none has.

A replay launches its collectives without Python, so the group is told of each: a rank that is lost must be noticed, and
traffic counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from lp.model.gpu.cuda_graphs import Capture, capture_on_gpu
from lp.model.kernels import UnsupportedAttention
from parallel.comm.base import Collectives
from parallel.errors import RankLost


def capture_together(collectives: Collectives) -> Capture:
    """The Capture of one of the ranks that share a model. All of them call it at the same time.

    It raises RuntimeError on all ranks if one cannot capture: the others would wait for it in their next warm-up.
    """

    def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
        traffic = replace(collectives.traffic)

        def counted() -> Tensor:
            nonlocal traffic
            before = replace(collectives.traffic)
            result = run()
            traffic = collectives.traffic - before  # of the last run, which is the captured one
            return result

        captured, failure = None, RuntimeError("another of the ranks that share the model cannot capture it")
        try:
            captured = capture_on_gpu(counted, pool)
        except RankLost:
            raise
        except (RuntimeError, UnsupportedAttention) as error:
            failure = error
        if not collectives.agree(captured is not None) or captured is None:
            raise failure
        replay, result = captured

        def replay_with_others() -> None:
            replay()
            collectives.replayed(replace(traffic, seconds=0.0))

        return replay_with_others, result

    return capture
