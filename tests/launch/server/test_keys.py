"""API keys from a file and the environment, the warning of an open server, and HTTPS."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from launch.server.access import VARIABLE, read_keys
from launch.server.run import Server, bind
from launch.server.settings import ServerSettings
from tests.launch.server.harness import LIMIT_S, Running, serving


def statuses(running: Running, *keys: str) -> list[int]:
    return [
        httpx.get(f"{running.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code for key in keys
    ]


def test_keys_from_a_file_and_the_environment(checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "keys"
    file.write_text("# of the team\nfrom-file\n\n  also-from-file \n")
    monkeypatch.setenv(VARIABLE, "from-environment, another")
    with serving(checkpoint, api_keys=["from-settings"], api_keys_file=str(file)) as running:
        good = ("from-settings", "from-file", "also-from-file", "from-environment", "another")
        assert statuses(running, *good) == [200] * len(good)
        assert statuses(running, "x", "# of the team", "from-environment, another", "nonsense") == [401] * 4
        assert httpx.get(f"{running.url}/v1/models", headers={"x-api-key": "from-file"}).status_code == 200
        assert httpx.get(f"{running.url}/v1/models", headers={"x-api-key": "nonsense"}).status_code == 401


def test_keys_have_owners():
    keys = read_keys(["one", "two"], None)
    assert keys is not None and read_keys([], None) is None
    bearer, header = {"authorization": "Bearer one"}, {"x-api-key": "one"}
    assert keys.owner_of(bearer) == keys.owner_of(header) != keys.owner_of({"x-api-key": "two"})
    assert keys.owner_of({}) is None and keys.owner_of({"authorization": "Basic one"}) is None


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "No such file"), ("# nothing\n", "holds no key"), ("schlüssel\n", "not printable ASCII")],
)
def test_bad_files(tmp_path: Path, content: str | None, word: str):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=word):
        bind(ServerSettings(port=0, api_keys_file=str(file)))


@pytest.mark.parametrize(
    ("settings", "warns"), [({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "api_keys": ["a"]}, False), ({}, False)]
)
def test_an_open_server_warns(shared: Running, caplog: pytest.LogCaptureFixture, settings: dict, warns: bool):
    typed = ServerSettings(port=0, **settings)
    with bind(typed) as listener:
        Server(shared.server.context.backend, typed, listener).context.close()
    assert ("no API keys" in caplog.text) is warns


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "certificate.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    alternative = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", files[0], "-keyout", files[1]]
    try:
        subprocess.run([*command, *alternative], check=True, capture_output=True, timeout=LIMIT_S)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return files


def test_https(checkpoint, certificate: tuple[str, str]):
    with serving(checkpoint, tls_certificate=certificate[0], tls_key=certificate[1]) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate[0])
        assert httpx.get(f"{running.url}/health", verify=trusted).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")


def test_bad_certificates(tmp_path: Path, certificate: tuple[str, str]):
    for settings, word in (
        ({"tls_certificate": certificate[0]}, r"server\.tls_key is missing"),
        ({"tls_certificate": certificate[0], "tls_key": str(tmp_path / "none")}, r"server\.tls_key=.* is not a file"),
        ({"tls_certificate": certificate[1], "tls_key": certificate[1]}, "cannot be used together"),
    ):
        with pytest.raises(ValueError, match=word):
            bind(ServerSettings(port=0, **settings))
