"""Which members of a group of tests are slow: `make test` runs some of them, `make test-slow` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *quick: Any) -> list[Any]:
    """The values of a parametrized test, all of which are marked slow, but for those that are named here.

    A tuple holds the values of several arguments.
    """
    listed = list(values)
    if absent := [one for one in quick if one not in listed]:
        raise ValueError(f"no values of this test: {absent}")
    return [_parameter(one, () if one in quick else pytest.mark.slow) for one in listed]


def _parameter(value: Any, marks: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=marks)
