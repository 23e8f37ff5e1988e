"""A browser is found or installed, and if none can be had, the reasons are told."""

from __future__ import annotations

import subprocess

import pytest

from tests.page import install


def test_the_systems_browser_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: "/bin/found" if name == "google-chrome" else None)
    assert install.find_system_browser() == "/bin/found"
    assert install.main() == 0


@pytest.mark.parametrize("user", [0, 1000])
def test_reasons_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int) -> None:
    tried = []

    def fail(command: tuple[str, ...], **_) -> subprocess.CompletedProcess[str]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 1, "no network\n")

    monkeypatch.setattr(install, "has_browser", lambda: False)
    monkeypatch.setattr(install.os, "geteuid", lambda: user)
    monkeypatch.setattr(install.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(install.subprocess, "run", fail)
    assert install.main() == 1
    told = capsys.readouterr().err
    assert "Install Chromium" in told and "playwright install" in told and "no network" in told
    assert (len(tried) == 2) == (user == 0) and ("needs root" in told) == (user != 0)
