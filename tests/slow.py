"""Which target runs a member of a group of tests: `make test`, `make test-slow` or `make test-exhaustive`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """The values of a parametrized test, all of which are marked slow, but for those that are named here.

    A tuple holds the values of several arguments.
    """
    listed = list(values)
    _check(listed, quick)
    return [_parameter(one, () if one in quick else pytest.mark.slow) for one in listed]


def exhaustive_except(values: Iterable[Any], *slow: Any, quick: Iterable[Any] = ()) -> list[Any]:
    """The values of a parametrized test, all of which are marked exhaustive, but for those that are slow or quick."""
    listed, quick = list(values), list(quick)
    _check(listed, [*slow, *quick])
    marks = [() if one in quick else pytest.mark.slow if one in slow else pytest.mark.exhaustive for one in listed]
    return [_parameter(one, mark) for one, mark in zip(listed, marks, strict=True)]


def _check(listed: list[Any], named: Iterable[Any]) -> None:
    if absent := [one for one in named if one not in listed]:
        raise ValueError(f"no values of this test: {absent}")


def _parameter(value: Any, marks: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=marks)
