"""Arrivals at random have the asked rate and depend on the seed alone; a trace is read, or its fault is named."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load.arrivals import Arrival, poisson_times, read_trace

GOOD = '{"timestamp": 500, "input_length": 30, "output_length": 4}'


def test_poisson_arrivals_are_those_of_the_seed():
    assert poisson_times(2.0, 50, seed=3) == poisson_times(2.0, 50, seed=3)
    assert poisson_times(2.0, 50, seed=3) != poisson_times(2.0, 50, seed=4)
    assert poisson_times(2.0, 1, seed=3) == [0.0] and poisson_times(2.0, 0, seed=3) == []


def test_poisson_gaps_are_exponential_with_the_rate():
    times = poisson_times(4.0, 20_000, seed=0)
    gaps = np.array([later - earlier for earlier, later in pairwise(times)])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)  # as its mean: that makes it exponential and not regular


def test_a_trace_is_read_in_the_order_of_its_times(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"timestamp": 2500, "input_length": 7, "output_length": 9, "hash_ids": [1]}}\n\n{GOOD}\n')
    assert read_trace(path) == [Arrival(0.0, 30, 4), Arrival(2.0, 7, 9)]
    assert read_trace(path, unit="s") == [Arrival(0.0, 30, 4), Arrival(2000.0, 7, 9)]
    assert read_trace(path, speed=4.0, scale=0.1) == [Arrival(0.0, 3, 1), Arrival(0.5, 1, 1)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1, 2, 3]", "no object with numbers"),
        ('{"timestamp": 1, "input_length": 3}', "output_length"),
        ('{"timestamp": 1, "input_length": true, "output_length": 2}', "no object with numbers"),
        ('{"timestamp": NaN, "input_length": 3, "output_length": 2}', "no object with numbers"),
        ('{"timestamp": -1, "input_length": 3, "output_length": 2}', "must not be negative"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 2}', "above 0"),
        ('{"timestamp": 1, "input_length": 3.5, "output_length": 2}', "whole numbers"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError, match=said) as raised:
        read_trace(path)
    assert "trace.jsonl, line 2: " in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_requests_is_refused(content: bytes, tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trace\.jsonl"):
        read_trace(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_trace(tmp_path / "missing")
