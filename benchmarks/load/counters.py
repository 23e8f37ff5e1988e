"""Counters of a server's GET /metrics: what they grew by during a measurement."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence

import httpx

PREFIXES = ("lookahead:", "vllm:")
LINE = re.compile(r"([\w:]+)(?:\{[^}]*\})? (\S+)")

GENERATED = "vllm:generation_tokens_total"
REQUEST_STEPS = "lookahead:steps_total"
REQUEST_ROWS = "lookahead:rows_total"
# Of the engine's steps, in which several requests may share a forward. Servers that have them show them; see FIGURES.
ENGINE_STEPS = "lookahead:engine_steps_total"
ENGINE_ROWS = "lookahead:engine_rows_total"
EXPECTED = "lookahead:expected_tokens_total"

# Ratios of two counters, by their names in reports.
FIGURES = {
    "tokens of a request a step": (GENERATED, REQUEST_STEPS),
    "rows of a request a step": (REQUEST_ROWS, REQUEST_STEPS),
    "tokens an engine step": (GENERATED, ENGINE_STEPS),
    "rows an engine step": (ENGINE_ROWS, ENGINE_STEPS),
    "expected over real tokens": (EXPECTED, GENERATED),
}


def parse_counters(text: str) -> dict[str, float]:
    """The sum of each of this project's counters (names that end with _total) in Prometheus' text format."""
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = LINE.match(line)
        if match and match[1].endswith("_total") and match[1].startswith(PREFIXES):
            found[match[1]] += float(match[2])
    return dict(found)


def read_counters(urls: Sequence[str]) -> dict[str, float]:
    """The counters of all servers together; empty if one shows none."""
    found: dict[str, float] = defaultdict(float)
    for url in urls:
        try:
            answer = httpx.get(f"{url}/metrics", timeout=10.0, trust_env=False)
        except httpx.HTTPError:
            return {}
        if answer.status_code != httpx.codes.OK:
            return {}
        add(found, parse_counters(answer.text))
    return dict(found)


def add(total: MutableMapping[str, float], more: Mapping[str, float]) -> None:
    """Adds counters to a total."""
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + value


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each counter grew by."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()} if before else {}


def derive(counters: Mapping[str, float]) -> dict[str, float]:
    """The FIGURES whose counters are there and have grown."""
    return {
        name: counters[over] / counters[under]
        for name, (over, under) in FIGURES.items()
        if counters.get(over, 0) > 0 and counters.get(under, 0) > 0
    }
