"""Figures from records made by hand."""

from __future__ import annotations

import pytest

from benchmarks.load.counters import derive, growth, parse_counters
from benchmarks.load.figures import Slo, longest_pause, summarise
from tests.benchmarks.load.made_records import cell, record

SLO = Slo(first_token_ms=1000, per_token_ms=250)


def test_latencies_of_a_request():
    found = record(0.5, 0.7, 1.5, tokens=6)
    assert found.first_token_s == 0.5 and found.latency_s == 1.5
    assert found.per_token_s == pytest.approx(0.2)  # five tokens after the first, in one second
    assert found.gaps_s == pytest.approx([0.2, 0.8])
    assert record(0.5).per_token_s is None and record(0.5).gaps_s == []


def test_a_late_request_counts_from_when_it_was_due():
    found = record(3.0, sent=2.0)
    found.due_at = 1.5
    assert found.first_token_s == 1.5 and found.latency_s == 1.5


def test_percentiles():
    found = summarise(range(1, 102))
    assert found == {"mean": 51.0, "p50": 51.0, "p90": 91.0, "p95": 96.0, "p99": 100.0}
    assert summarise([]) == {}


def test_rates_leave_failed_requests_out_and_goodput_slow_ones():
    good, slow_start, slow_tokens = record(0.5, 1.0), record(1.5, 1.6), record(0.5, 2.0)
    found = cell("auto", [good, slow_start, slow_tokens, record(4.0, error="cut")])
    assert found.seconds == 4.0
    assert found.tokens_per_s == pytest.approx(6 / 4)
    assert found.requests_per_s == pytest.approx(3 / 4)
    assert found.goodput(Slo(1000, 600)) == pytest.approx(1 / 4)
    assert found.goodput(Slo(2000, 600)) == pytest.approx(2 / 4)
    assert found.goodput(Slo(2000, 2000)) == pytest.approx(3 / 4)


def test_a_pause_is_counted_in_steps_from_when_the_prompt_came():
    stream = record(1.0, 3.0, 3.1, 3.2, 3.3, 4.0, 4.1)  # the first gap of 2 was before the prompt
    assert longest_pause(stream, record(3.9, sent=3.35)) == pytest.approx(7.0)
    assert longest_pause(stream, record(6.0, sent=5.0)) is None  # the stream had ended
    assert longest_pause(stream, record(sent=3.35, error="refused")) is None


def test_counters_are_summed_over_labels_and_grow():
    text = (
        "# HELP vllm:generation_tokens_total Tokens\n# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{model_name="m"} 120.0\n'
        'lookahead:draft_tokens_total{model_name="m",source="window"} 2.0\n'
        'lookahead:draft_tokens_total{model_name="m",source="index"} 3.0\n'
        'lookahead:steps_total{model_name="m"} 60.0\nlookahead:rows_total{model_name="m"} 240.0\n'
        'vllm:num_requests_running{model_name="m"} 1.0\npython_info{version="3"} 1.0\nother_total 5.0\n'
    )
    after = parse_counters(text)
    assert after["lookahead:draft_tokens_total"] == 5.0 and "other_total" not in after and len(after) == 4
    grown = growth({"vllm:generation_tokens_total": 20.0, "lookahead:steps_total": 10.0}, after)
    assert derive(grown) == {"tokens of a request a step": 2.0, "rows of a request a step": 4.8}
    assert derive({**grown, "lookahead:engine_steps_total": 20, "lookahead:expected_tokens_total": 90}) == {
        "tokens of a request a step": 2.0,
        "rows of a request a step": 4.8,
        "tokens an engine step": 5.0,
        "expected over real tokens": 0.9,
    }
    assert growth({}, after) == {} and derive({}) == {}
