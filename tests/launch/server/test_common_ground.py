"""What clients and monitors of other servers rely on: names of the model, packed bodies, paths, states, host names."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest

from launch.server.access import AllowedHosts
from launch.server.context import names_of_model
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

BODY = {"prompt": "def f(", "max_tokens": 4, "temperature": 0}


def send(running: Running, data: bytes, encoding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return httpx.post(f"{running.url}/v1/completions", content=data, headers=headers, timeout=LIMIT_S)


def test_a_model_has_several_names(checkpoint):
    with serving(checkpoint, model_names=["tiny", "team/tiny"]) as running:
        listed = httpx.get(f"{running.url}/v1/models").json()
        assert [one["id"] for one in listed["data"]] == ["tiny", "team/tiny", "tiny-llama"]
        assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("tiny", "tiny-llama", False)
        for name in ("tiny-llama", "team/tiny"):
            card = httpx.get(f"{running.url}/v1/models/{name}").json()
            assert card["id"] == name and card["root"] == "tiny" and card["max_model_len"] == 1024
            assert card["type"] == "model" and card["display_name"] == name and card["created_at"].endswith("Z")
            assert running.post("/v1/completions", model=name, **BODY).json()["model"] == name
            message = running.post(
                "/v1/messages", model=name, max_tokens=2, messages=[{"role": "user", "content": "a"}]
            )
            assert message.json()["model"] == name
        assert_error(running.post("/v1/completions", model="other", **BODY), 404, "'team/tiny'", "server.model_names")


def test_the_first_name_is_that_of_the_command_line_but_no_path(tmp_path):
    assert names_of_model(None, ["smollm2"], "SmolLM2.Q4") == ["smollm2", "SmolLM2.Q4"]
    assert names_of_model(None, [str(tmp_path)], tmp_path.name) == [tmp_path.name, str(tmp_path)]
    assert names_of_model("mine", ["other"], "SmolLM2.Q4") == ["mine", "other"], "the file has another name for clients"
    assert names_of_model(str(tmp_path), ["other"], "SmolLM2.Q4") == [str(tmp_path), "other"], "it was asked for"
    assert names_of_model(None, [], "own") == ["own"] == names_of_model(None, ["own"], "own")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, x-gzip", ""])
def test_packed_bodies(shared: Running, encoding: str):
    data = json.dumps(BODY).encode()
    packed = gzip.compress(data[:5]) + gzip.compress(data[5:]) if "gzip" in encoding else data
    answer = send(shared, zlib.compress(data) if encoding == "deflate" else packed, encoding)
    assert answer.json()["choices"] == shared.post("/v1/completions", **BODY).json()["choices"]


def test_packed_bodies_that_cannot_be_used(shared: Running):
    data = gzip.compress(json.dumps(BODY).encode())
    assert_error(send(shared, data, "br"), 415, "'br'", "gzip", code="unsupported_encoding")
    for bad in (data[:-9], data + b"more", b"{}", b"\x1f\x8b"):
        assert_error(send(shared, bad, "gzip"), 400, "not valid gzip", code="invalid_encoding")
    bomb = gzip.compress(b"[" * 50_000_000)
    assert_error(send(shared, bomb, "gzip"), 413, "4194304 bytes", code="body_too_large")
    shared.assert_serves()


def test_a_path_may_end_with_a_slash(shared: Running):
    assert shared.post("/v1/completions/", **BODY).status_code == 200
    for path in ("/v1/models/", "/health/", "/v1/models/tiny-llama/", "/"):
        assert httpx.get(shared.url + path).status_code == 200


def test_states(shared: Running):
    assert httpx.get(f"{shared.url}/ping").json() == httpx.post(f"{shared.url}/ping").json() == {"status": "ok"}
    assert httpx.get(f"{shared.url}/load").json() == {"server_load": 0, "running": 0, "waiting": 0}


def test_prefixes_are_forgotten(checkpoint):
    with serving(checkpoint, SchedulerSettings(prefix_reuse=PrefixReuse.all), api_keys=["key"]) as running:
        path, key = f"{running.url}/reset_prefix_cache", {"authorization": "Bearer key"}
        body: dict[str, Any] = {"prompt": [7, 8] * 40, "max_tokens": 2}

        def ask() -> int:
            answer = httpx.post(f"{running.url}/v1/completions", json=body, headers=key, timeout=LIMIT_S).json()
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert (ask(), ask() > 0) == (0, True)
        assert httpx.post(path).status_code == 401
        assert httpx.post(path, headers={**key, "origin": "https://example.org"}).status_code == 403
        assert httpx.post(path, headers=key).json() == {"success": True}
        assert (ask(), ask() > 0) == (0, True)


@pytest.mark.parametrize("host", ["host.docker.internal:8000", "lookahead:8000", "", "web_1"])
def test_monitors_may_call_a_loopback_server_by_names_of_containers(shared: Running, host: str):
    for path in ("/health", "/ready", "/metrics", "/ping"):
        assert httpx.get(shared.url + path, headers={"host": host}).status_code == 200
    answer = httpx.get(f"{shared.url}/v1/models", headers={"host": host})
    if host.startswith("host."):
        assert answer.status_code == 200
    elif host:
        words = f"server.allowed_hosts=[{host.partition(':')[0]}]"
        assert_error(answer, 403, words, code="host_not_allowed")
    assert httpx.get(f"{shared.url}/health", headers={"host": "evil.example.org"}).status_code == 403


def test_names_of_a_loopback_server():
    hosts = AllowedHosts("127.0.0.1", [])
    assert hosts.allows("", "/health") and not hosts.allows("", "/v1/models") and not hosts.allows("a.b", "/health")
