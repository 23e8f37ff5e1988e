"""Runs a server as a process of its own: python process.py FOLDER STEP_SECONDS SETTINGS_AS_JSON."""

from __future__ import annotations

import json
import logging
import sys
import time

from launch.backend import EngineBackend
from launch.server.run import serve
from launch.server.settings import ServerSettings
from lp import Engine
from lp.single_device import SingleDevice
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel


class SlowRunner(SingleDevice):
    """A single device that sleeps before each step."""

    def __init__(self, model, step_s: float):
        super().__init__(model)
        self.step_s = step_s

    def launch(self, steps):
        time.sleep(self.step_s)
        return super().launch(steps)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    folder, step_s, settings = sys.argv[1:]
    engine = Engine.from_pretrained(folder, device="cpu")
    engine = Engine(engine.checkpoint, SlowRunner(engine.checkpoint.model, float(step_s)))
    return serve(EngineBackend(engine, Channel(LocalExchange())), ServerSettings(**json.loads(settings)))


if __name__ == "__main__":
    sys.exit(main())
