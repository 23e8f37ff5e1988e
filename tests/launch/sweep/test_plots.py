"""The report's plots: none is empty, and long names of points have room."""

from __future__ import annotations

import re

from launch.sweep.plots import accepted_lengths, all_plots, bars
from launch.sweep.summary import Spread, Summary

LONG = "lookahead (15, 5, 15), lp on 2 ranks, model=smollm2, workload=humaneval, sampling.temperature=0.8"


def make(name: str, **figures: object) -> Summary:
    return Summary(name, name, "runtime", "lp", 2, "lookahead", {}, rounds=3, **figures)  # type: ignore[arg-type]


def height_of(svg: str) -> float:
    found = re.search(r'height="([\d.]+)pt"', svg)
    assert found
    return float(found[1])


def test_no_plot_is_empty() -> None:
    speed = Spread(10.0, 9.0, 11.0)
    alone = [make("one", tokens_per_s=speed, communication_share=0.0, bytes_per_step=0.0, collectives_per_step=0.0)]
    assert [title for title, _ in all_plots(alone)] == ["Speed (tokens per second)"]
    assert all_plots([]) == [] and all_plots([make("failed")]) == []
    both = [*alone, make("two", tokens_per_s=speed, bytes_per_step=300.0, accepted_lengths={1: 0.5, 2: 0.5})]
    assert [title.partition(" (")[0] for title, _ in all_plots(both)] == [
        "Speed",
        "Bytes that a rank sends",
        "Tokens that a step yields",
    ]


def test_long_names_have_lines_of_their_own() -> None:
    def value(summary: Summary) -> float:
        return 1.0

    short, long = (bars([make(name)] * 3, "tokens", value) for name in ("auto", LONG))
    assert height_of(long) > height_of(short) + 3 * 2 * 0.15 * 72
    lengths = {1: 0.5, 7: 0.5}
    short, long = (accepted_lengths([make(name, accepted_lengths=lengths)] * 3) for name in ("auto", LONG))
    assert height_of(long) > height_of(short)
