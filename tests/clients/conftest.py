"""What the tests of all clients share: the server that `tests/clients/run.py` has started."""

from __future__ import annotations

import os

import httpx
import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """The address of the server, without /v1."""
    return os.environ["LOOKAHEAD_CLIENT_URL"]


@pytest.fixture(scope="session")
def model(url: str) -> str:
    """The name under which the server has its model."""
    return httpx.get(f"{url}/v1/models").json()["data"][0]["id"]


@pytest.fixture(scope="session")
def routes(url: str) -> set[str]:
    """The paths that the server's own OpenAPI document describes."""
    answer = httpx.get(f"{url}/openapi.json")
    return set(answer.json()["paths"]) if answer.status_code == 200 else set()


@pytest.fixture(scope="session")
def writes_schemas(url: str) -> bool:
    """Whether the server holds a text to a JSON schema."""
    return _takes(url, response_format={"type": "json_object"})


@pytest.fixture(scope="session")
def calls_tools(url: str) -> bool:
    """Whether the server takes tools."""
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    return _takes(url, tools=[tool])


def _takes(url: str, **fields: object) -> bool:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
