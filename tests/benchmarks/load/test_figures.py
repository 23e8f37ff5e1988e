"""Figures from records made by hand, and the report that shows them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load.counters import derive, growth, parse_counters
from benchmarks.load.figures import Slo, longest_pause, summarise, summarise_all
from benchmarks.load.report import describe, plot, to_json
from benchmarks.load.rounds import Measurements
from benchmarks.load.systems.specs import read_systems
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


def test_the_report_has_all_systems_and_what_failed():
    found = Measurements(left_out={"gone": "it did not start"})
    for number, seconds in enumerate((1.0, 1.25), start=1):
        counters = {"lookahead:steps_total": 2.0, "lookahead:rows_total": 14.0}
        found.cells.append(cell("auto", [record(0.1, seconds), record(0.1, seconds)], number, counters=counters))
        found.cells.append(cell("plain", [record(0.1, 2.0), record(sent=0.0, error="HTTP 500: no")], number))
    specs = read_systems(["auto=", "plain=decode=autoregressive", "gone=transformers"], [])
    text = describe(found, specs, SLO)
    assert "- plain: this project, decode=autoregressive" in text
    assert "- gone: it did not start" in text
    assert "- closed loop, 2 streams, plain: 2 x HTTP 500: no" in text
    (rates,) = [line for line in text.splitlines() if "| plain" in line and "0.25 0.31" in line]
    assert "0.28x" in rates and rates.count("| ") == 9
    assert "rows of a request a step" in text and "| 7.00 |" in text.replace("  ", "")
    data = to_json(found, SLO)
    assert len(data["cells"]) == 4 and data["summaries"][0]["tokens_per_s"] == pytest.approx((4.0 + 3.2) / 2)
    assert plot(summarise_all(found.cells, SLO)) is not None


def test_a_burst_and_a_pause_have_tables_of_their_own():
    phases = [record(0.1, 1.0, phase="before"), record(0.1, 3.0, phase="burst"), record(0.1, 2.0, phase="after")]
    stream, prompt = record(1.0, 1.1, 1.2, 1.9, phase="try 1"), record(1.8, sent=1.25, phase="try 1")
    found = Measurements(
        [
            cell("auto", phases, scenario="burst, 1, 4, 1 streams", kind="burst", load=None),
            cell("auto", [stream, prompt], scenario="a prompt beside a stream", kind="pause", load=None),
        ],
        is_cut_short=True,
    )
    text = " ".join(describe(found, read_systems(["auto="], []), SLO).replace("|", "").split())
    assert "burst, 1, 4, 1 streams auto 1000.0 3000.0 2000.0 2000.0" in text
    assert "a prompt beside a stream auto 7.0 7.0 1" in text
    assert "Stopped before the end" in text


def test_nothing_measured_is_a_report_too():
    found = Measurements(left_out={"auto": "no"})
    assert "Nothing was measured." in describe(found, read_systems(["auto="], []), SLO)
    assert plot([]) is None


def test_several_loads_are_drawn_as_lines():
    cells = [cell("auto", [record(0.1, 1.0)], scenario=f"{load}", load=load) for load in (1, 2, 4)]
    figure = plot(summarise_all(cells, SLO))
    assert figure and figure.axes[0].get_title() == "output tokens per second"
    assert np.asarray(figure.axes[0].get_lines()[0].get_xdata()).tolist() == [1, 2, 4]
