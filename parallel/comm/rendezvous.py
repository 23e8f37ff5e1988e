"""How ranks wait for each other at a Store: in small portions, as a wait inside the Store could not be given up."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch.distributed import Store

from parallel.comm.base import EpochOver, IsOver

_LOOK_S = 0.002


def await_keys(store: Store, keys: Sequence[str], timeout_s: float, is_over: IsOver) -> list[str]:
    """Waits until all keys are set; those that are still missing after `timeout_s` seconds. Raises EpochOver."""
    deadline = time.monotonic() + timeout_s
    missing = list(keys)
    while missing := [key for key in missing if not store.check([key])]:
        if is_over():
            raise EpochOver
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    return missing
