"""Other streams beside the one that is observed: what a server does for one client, it must do for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.faults.soak_load import SoakLoad, questions
from benchmarks.shared.inputs import read_prompts

NUM_PROMPTS = 4


@contextmanager
def company(url: str, num_streams: int, seed: int) -> Iterator[SoakLoad]:
    """Clients that ask all the time and judge their answers, which are there at the end.

    num_streams: how many of them; with none, nothing is asked. Raises ValueError if the server has no answers.
    """
    load = SoakLoad(url, questions(read_prompts(None, NUM_PROMPTS)) if num_streams else [], num_streams, seed)
    asyncio.run(load.learn())
    is_over = threading.Event()
    asking = threading.Thread(target=lambda: asyncio.run(load.run(lambda: not is_over.is_set())), daemon=True)
    asking.start()
    try:
        yield load
    finally:
        is_over.set()
        asking.join()
