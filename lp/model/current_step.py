"""The step whose rows a model is running, for the modules of the model that need it.

transformers' code stands between the caller of a forward and its layers, and not every model hands on arguments that it
does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Attention and recurrent layers know a step by types of their own: Step and RecurrentStep.
_current: ContextVar[Any] = ContextVar("step", default=None)


@contextmanager
def running(step: Any) -> Iterator[None]:
    """Makes a step that of all forwards within the context, in this thread."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def current_step() -> Any:
    """The step whose rows are being run; None where transformers runs a text by itself."""
    return _current.get()
