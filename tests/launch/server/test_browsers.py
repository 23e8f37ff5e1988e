"""What a browser may do: origins, media types, names of the server, HEAD, ids of requests."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from launch.server.access import AllowedHosts, is_loopback, without_port
from launch.server.app import make_app
from launch.server.settings import ServerSettings
from tests.launch.server.harness import LIMIT_S, Running, assert_error, serving

ORIGIN = "https://chat.example.org"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def post(running: Running, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    body = b'{"prompt": "a", "max_tokens": 1}'
    headers = {"content-type": "application/json", **headers}
    return httpx.post(running.url + path, content=body, headers=headers, timeout=LIMIT_S)


def test_no_origin_is_allowed_by_default(shared: Running):
    preflight = httpx.options(f"{shared.url}/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 405
    for answer in (preflight, post(shared, origin=ORIGIN)):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_pages_of_allowed_origins_may_use_the_server(checkpoint):
    with serving(checkpoint, allowed_origins=[ORIGIN], api_keys=["key"]) as running:
        preflight = httpx.options(f"{running.url}/v1/completions", headers=PREFLIGHT)
        assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        deletes = httpx.options(
            f"{running.url}/v1/responses/resp_1", headers={**PREFLIGHT, "access-control-request-method": "DELETE"}
        )
        assert deletes.status_code == 200, "a response can be deleted"
        refused = post(running, origin=ORIGIN)
        assert refused.status_code == 401
        for answer in (refused, post(running, origin=ORIGIN, authorization="Bearer key")):
            assert answer.headers["access-control-allow-origin"] == ORIGIN, "a page can read errors as well"
            assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
        other = httpx.options(f"{running.url}/v1/completions", headers={**PREFLIGHT, "origin": "https://evil.example"})
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["chat.example.org", "https://chat.example.org/path", ""])
def test_what_is_no_origin_is_refused(origin: str):
    with pytest.raises(ValueError, match=r"server\.allowed_origins holds"):
        ServerSettings(allowed_origins=[origin]).check()


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_other_media_types_are_refused(shared: Running, path: str, media_type: str):
    """A page of any origin may send these without a preflight."""
    answer = post(shared, path, **{"content-type": media_type})
    assert_error(answer, 415, "application/json", code="unsupported_media_type")


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_taken_with_parameters(shared: Running, media_type: str):
    assert post(shared, **{"content-type": media_type}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]"])
def test_another_name_of_a_loopback_server_is_refused(shared: Running, host: str):
    before = shared.metric("lookahead:requests_refused_total", reason="host_not_allowed")
    for answer in (httpx.get(f"{shared.url}/v1/models", headers={"host": host}), post(shared, host=host)):
        assert_error(answer, 403, "server.allowed_hosts", code="host_not_allowed")
        assert answer.headers["x-request-id"]
    assert shared.metric("lookahead:requests_refused_total", reason="host_not_allowed") == before + 2


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_names_of_this_machine_are_allowed(shared: Running, host: str):
    assert httpx.get(f"{shared.url}/health", headers={"host": host}).status_code == 200


def test_more_names_are_allowed_by_a_setting(checkpoint):
    with serving(checkpoint, allowed_hosts=["models.example.org"]) as running:
        assert httpx.get(f"{running.url}/health", headers={"host": "models.example.org:8000"}).status_code == 200
        assert httpx.get(f"{running.url}/health", headers={"host": "localhost"}).status_code == 200
        assert httpx.get(f"{running.url}/health", headers={"host": "other.example.org"}).status_code == 403


def test_which_names_are_allowed_on_which_address():
    assert AllowedHosts("0.0.0.0", []).allows("anything.example")
    assert AllowedHosts("127.0.0.1", ["*"]).allows("anything.example")
    assert not AllowedHosts("0.0.0.0", ["models.example.org"]).allows("anything.example")
    assert AllowedHosts("::1", []).allows("[::1]:8000") and not AllowedHosts("::1", []).allows("anything.example")
    assert AllowedHosts("127.0.0.2", []).allows("127.0.0.2:8000")
    assert is_loopback("localhost") and is_loopback("::1") and not is_loopback("0.0.0.0")
    assert [without_port(host) for host in ("a:80", "a", "[::1]:80", "[::1]", "::1")] == [
        "a",
        "a",
        "[::1]",
        "[::1]",
        "::1",
    ]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/docs", "/openapi.json"])
def test_head_is_get_without_the_body(shared: Running, path: str):
    whole, head = httpx.get(shared.url + path), httpx.head(shared.url + path)
    assert head.status_code == whole.status_code == 200 and head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"] and "content-length" in head.headers


def test_head_of_what_cannot_be_got(shared: Running):
    assert httpx.head(f"{shared.url}/v1/completions").status_code == 405
    assert httpx.head(f"{shared.url}/nothing").status_code == 404


def test_a_request_keeps_its_id(shared: Running):
    assert post(shared, **{"x-request-id": "trace-17"}).headers["x-request-id"] == "trace-17"
    assert httpx.get(f"{shared.url}/nothing", headers={"x-request-id": "t"}).headers["x-request-id"] == "t"


@pytest.mark.parametrize("given", [None, "x" * 129, "with space", ""])
def test_a_request_gets_an_id(shared: Running, given: str | None):
    headers = {} if given is None else {"x-request-id": given}
    found = [httpx.get(f"{shared.url}/health", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert len(set(found)) == 2 and given not in found and all(len(one) == 32 for one in found)


def test_an_application_behind_a_proxy_starts_and_takes_every_name(shared: Running):
    """Ray Serve runs the application without the server around it, and starts it by ASGI's lifespan."""

    async def ask() -> httpx.Response:
        app = make_app(shared.server.context)
        lifespan = LifespanOn(Config(app, lifespan="on"))
        await lifespan.startup()
        assert not lifespan.should_exit
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://models.example.org") as client:
            answer = await client.get("/health")
        await lifespan.shutdown()
        return answer

    assert asyncio.run(ask()).status_code == 200
