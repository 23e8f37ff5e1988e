"""The dashboard queries metrics and labels that the server has, and Prometheus understands the queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.backend import State
from launch.server.metrics import Clock, Metrics
from lp.request import Output
from lp.statistics import Statistics
from tests.examples.commands import DEPLOY, documents

MONITORING = DEPLOY / "monitoring"
PROMETHEUS = MONITORING / "prometheus.yml"
# Labels that Prometheus itself adds, or that every histogram has.
SCRAPED_LABELS = {"instance", "job", "le"}


def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "grafana" / "dashboard.json").read_text(encoding="utf-8"))


def expressions() -> list[str]:
    """Returns the queries of all panels."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def queried_names(text: str) -> set[str]:
    return set(re.findall(r"\b(?:vllm|lookahead):\w+", text))


def queried_labels(expression: str) -> set[str]:
    """Returns the labels that are matched in braces, and those by which sums are grouped."""
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    grouped = [label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")]
    return {label.strip() for label in [*matched, *grouped]}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each sample that the server exports once a request has ended, by the sample's name."""
    metrics = Metrics("a model")
    metrics.watch(lambda: 0, lambda: 0, lambda: 0.0)
    metrics.watch_ranks(lambda: {"epoch": 1, "divided": False, "ranks": [{"state": "serving"}]}, lambda: 0)
    drafts = Counter({"suffix": 2})
    stats = Statistics(steps=1, rows=3, proposed=drafts, accepted=drafts, accepted_lengths=Counter({3: 1}))
    metrics.observe(Output("a request", [7, 8, 9], "abc", None, "length", stats), Clock())
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.mark.parametrize("expression", expressions())
def test_a_panel_queries_what_the_server_exports(expression: str, exported: dict[str, set[str]]):
    names = queried_names(expression)
    assert names and names <= exported.keys()
    assert queried_labels(expression) <= SCRAPED_LABELS.union(*(exported[name] for name in names))


def test_states_of_ranks_are_those_that_the_server_exports():
    asked = {state for expression in expressions() for state in re.findall(r'state!?="(\w+)"', expression)}
    assert asked and asked <= set(State)


def test_the_panels_cover_what_an_operator_needs():
    shown = set().union(*(queried_names(expression) for expression in expressions()))
    assert shown >= {
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:time_per_output_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:generation_tokens_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "lookahead:steps_total",
        "lookahead:accepted_tokens_total",
        "lookahead:draft_tokens_total",
        "lookahead:ranks",
        "lookahead:epoch",
        "lookahead:rank_losses_total",
    }


def test_the_variables_query_what_the_server_exports(exported: dict[str, set[str]]):
    queries = [
        variable["query"]["query"] for variable in dashboard()["templating"]["list"] if variable["type"] == "query"
    ]
    assert queries and all(queried_names(query) <= exported.keys() for query in queries)


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = Counter(
        (x, y)
        for box in (panel["gridPos"] for panel in panels)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    )
    assert max(cells.values()) == 1 and max(x for x, _ in cells) < 24


def test_grafana_is_given_the_data_source_and_the_folder_of_the_dashboard():
    provisioning = MONITORING / "grafana" / "provisioning"
    (source,) = documents(provisioning / "datasources" / "prometheus.yaml")[0]["datasources"]
    (provider,) = documents(provisioning / "dashboards" / "lookahead-parallel.yaml")[0]["providers"]
    services = documents(DEPLOY / "docker" / "compose.yaml")[0]["services"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    folders = {
        volume.split(":")[1].rpartition("/")[0] for volume in services["grafana"]["volumes"] if ".json:" in volume
    }
    assert folders == {provider["options"]["path"]}


def test_prometheus_scrapes_the_port_and_path_of_the_server():
    (scrape,) = documents(PROMETHEUS)[0]["scrape_configs"]
    (group,) = documents(MONITORING / "targets.docker.yml")[0]
    assert scrape["metrics_path"] == "/metrics" and group["targets"] == ["server:8000"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_takes_the_configuration_and_every_expression(tmp_path: Path):
    subprocess.run(["promtool", "check", "config", str(PROMETHEUS)], check=True, timeout=30)
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", text.replace("$__rate_interval", "1m"))}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", str(file)], check=True, timeout=30)
