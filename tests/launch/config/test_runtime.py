"""How the ranks of a program meet and part."""

from __future__ import annotations

import pytest

from launch.config import configuration, engine_settings, runtime
from launch.generate import GenerateSettings
from parallel import build
from parallel.comm.base import LocalExchange
from parallel.groups.messages import Shutdown, encode_commands


@pytest.mark.parametrize("has_begun", [False, True])
def test_only_a_failure_before_the_first_command_shuts_the_others_down(
    has_begun: bool, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorded(LocalExchange):
        def broadcast(self, data: bytes | None) -> bytes:
            sent.append(data or b"")
            return super().broadcast(data)

    sent: list[bytes] = []
    monkeypatch.setattr(build, "connect", lambda *settings: Recorded())
    engine_settings.register("generate", GenerateSettings)
    settings = configuration.load("generate", GenerateSettings, [f"model.path={folder}", "step_times=off"])
    with pytest.raises(OSError, match="lost"), runtime.running(settings) as running:
        if has_begun:
            running.channel.share(b"a command")
        raise OSError("lost")
    assert sent[-1] == (b"a command" if has_begun else encode_commands([Shutdown()]))
