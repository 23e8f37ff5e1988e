"""After a collective of torch.distributed has failed: which ranks are still there?

The error of a broken connection names an address, not a rank. Each survivor therefore answers a roll call in the
Store, the one place that all ranks can still reach. Knows nothing of process groups.
"""

from __future__ import annotations

import threading
import time

from torch.distributed import Store

ROLL_CALL_S = 2.0
_PERIOD_S = 0.02
_STORE_ANSWER_S = 1.0


def find_missing_ranks(store: Store, rank: int, num_ranks: int) -> tuple[int, ...]:
    """Answers for this rank, then waits up to ROLL_CALL_S for the others; returns those that did not answer, ascending.

    A Store that does not answer counts as the loss of rank 0, which hosts it (or sits beside its host).
    """
    present: set[int] = set()
    # In a thread, because calls to a Store whose host is stopped never return.
    caller = threading.Thread(target=_call, args=(store, rank, num_ranks, present), daemon=True)
    caller.start()
    caller.join(ROLL_CALL_S + _STORE_ANSWER_S)
    seen = set(present)
    return tuple(sorted(set(range(num_ranks)) - seen)) if seen else (0,)


def _call(store: Store, rank: int, num_ranks: int, present: set[int]) -> None:
    deadline = time.monotonic() + ROLL_CALL_S
    try:
        store.set(_key(rank), "here")
        while len(present) < num_ranks and time.monotonic() < deadline:
            present.update(other for other in range(num_ranks) if store.check([_key(other)]))
            time.sleep(_PERIOD_S)
    except RuntimeError:
        # The Store has gone, perhaps because its host has finished its own roll call: what was seen so far stands.
        return


def _key(rank: int) -> str:
    return f"roll_call/{rank}"
