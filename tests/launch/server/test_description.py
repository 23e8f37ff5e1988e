"""GET /openapi.json describes every route with its body, and /docs shows it without asking anybody else."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from launch.server.app import ROUTERS, routes_of
from launch.server.bodies import Body
from tests.launch.server.harness import Running, serving


@pytest.fixture(scope="module")
def document(shared: Running) -> dict[str, Any]:
    return httpx.get(f"{shared.url}/openapi.json").json()


def bodies(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The schema of each route's body."""
    found = {}
    for path, operations in document["paths"].items():
        if body := operations.get("post", {}).get("requestBody"):
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            found[path] = document["components"]["schemas"][name]
    return found


def test_every_post_has_a_body(document: dict[str, Any]):
    posts = {path for path, operations in document["paths"].items() if "post" in operations}
    posts -= {"/lookahead/ranks/{rank}/kill", "/ping", "/reset_prefix_cache"}  # all that they need is their paths
    assert bodies(document).keys() == posts >= {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}


def test_the_fields_are_those_that_are_read(document: dict[str, Any]):
    kinds = {kind.__name__: kind for kind in _all_kinds(Body)}
    for schema in bodies(document).values():
        assert schema["properties"].keys() == kinds[schema["title"]].model_fields.keys()


def _all_kinds(kind: type[Body]) -> list[type[Body]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _all_kinds(child))]


def test_fields_of_several_shapes_are_described(document: dict[str, Any]):
    schemas = document["components"]["schemas"]
    for kind, field, number in (("CompletionBody", "prompt", 4), ("ChatBody", "stop", 3), ("Message", "content", 3)):
        assert len(schemas[kind]["properties"][field]["anyOf"]) == number
    assert document["paths"]["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}


def test_references_lead_somewhere(document: dict[str, Any]):
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names and names <= document["components"]["schemas"].keys()


def test_streams_and_errors_are_described(document: dict[str, Any]):
    for path, operations in document["paths"].items():
        for operation in operations.values():
            done = "202" if path.endswith("/kill") else "200"
            assert {done, "4XX", "5XX"} == operation["responses"].keys(), path
    answer = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert answer.keys() == {"application/json", "text/event-stream"}


def test_a_server_with_keys_says_so(checkpoint):
    with serving(checkpoint, api_keys=["key"]) as running:
        found = httpx.get(f"{running.url}/openapi.json").json()
    assert found["security"] and found["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_every_route_is_described(document: dict[str, Any]):
    described = {route.path_format for route in routes_of(ROUTERS)}
    assert document["paths"].keys() == described >= {"/v1/models/{name}", "/metrics", "/tokenize"}


def test_the_page_asks_nobody_else(shared: Running):
    page = httpx.get(f"{shared.url}/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"(?:https?:)?//[a-z]", page.text.replace("<!doctype", "")), "no address but this server's"
