"""The error of a checkpoint that cannot be used, and how the errors of libraries are quoted in its message."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why and what to do."""


def one_line(error: BaseException) -> str:
    """An error's message on one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def described(error: Exception) -> str:
    """An error that a model raised, on one line; with its kind, unless this package has raised it for a user."""
    if type(error).__module__.startswith("lp."):
        return one_line(error)
    return f"transformers' code raises {type(error).__name__}: {one_line(error)}"
