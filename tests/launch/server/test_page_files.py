"""The files of the page are served as browsers want them, and only if that is wished."""

from __future__ import annotations

import re

import httpx
import pytest

from launch.server.page_files import FOLDER
from tests.launch.server.harness import Running, assert_error, serving

FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_served(shared: Running, name: str):
    answer = httpx.get(f"{shared.url}/page/{name}")
    assert answer.status_code == 200 and answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_may_load_nothing_from_elsewhere(shared: Running):
    answer = httpx.get(f"{shared.url}/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["trusted-types"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert answer.content == (FOLDER / "index.html").read_bytes()


def test_the_page_names_no_other_server_and_parses_no_html():
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name
        assert not re.search(r"<style|\sstyle=|\son\w+=", text), f"{name} has what the policy forbids"


def test_every_file_is_used():
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in FILES}
    for name in FILES:
        file = name.rpartition("/")[2]
        assert name == "index.html" or any(file in text for other, text in texts.items() if other != name), name


def test_a_known_version_is_not_sent_again(shared: Running):
    first = httpx.get(f"{shared.url}/page/scripts/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = httpx.get(first.url, headers={"If-None-Match": f'"another", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert httpx.get(first.url, headers={"If-None-Match": '"another"'}).status_code == 200


def test_head(shared: Running):
    for path in ("/", "/page/styles/page.css"):
        head, got = httpx.head(shared.url + path), httpx.get(shared.url + path)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["content-length"] == str(len(got.content)) and head.headers["etag"] == got.headers["etag"]


def test_nothing_else_is_served(shared: Running):
    for path in ("/page/", "/page/scripts/", "/page/none.js", "/page/%2e%2e/app.py", "/page/../app.py"):
        assert_error(httpx.get(shared.url + path), 404, "there is no GET")
    assert httpx.post(f"{shared.url}/").status_code == 405


def test_the_page_needs_no_key_but_its_requests_do(checkpoint):
    with serving(checkpoint, api_keys=["key"]) as running:
        assert httpx.get(running.url).status_code == 200
        assert httpx.get(f"{running.url}/lookahead/state").json()["needs_key"] is True
        assert running.post("/lookahead/tokens", ids=[1]).status_code == 401


def test_a_server_without_the_page(checkpoint):
    with serving(checkpoint, page=False) as running:
        assert_error(httpx.get(running.url), 404, "there is no GET /")
        assert_error(httpx.get(f"{running.url}/page/index.html"), 404)
        running.assert_serves()
