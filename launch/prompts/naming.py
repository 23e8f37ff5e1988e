"""Says which prompt an error is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts `where`, which names a prompt, before the message of a ValueError that the body raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
