"""Runs a server as a process of its own: python process.py FOLDER STEP_SECONDS SETTINGS_AS_JSON.

SIGUSR1 stops its steps, as if the next one took very long; SIGUSR2 lets them go on.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time

from launch.backend import EngineBackend
from launch.server.run import serve
from launch.server.settings import ServerSettings
from lp import Engine
from lp.runner.single_device import SingleDevice
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel


class SlowRunner(SingleDevice):
    """A single device that sleeps before each step, and longer if it is told to."""

    def __init__(self, model, step_s: float):
        super().__init__(model)
        self.step_s = step_s
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        signal.signal(signal.SIGUSR1, lambda *_: self.may_go_on.clear())
        signal.signal(signal.SIGUSR2, lambda *_: self.may_go_on.set())

    def launch(self, steps):
        time.sleep(self.step_s)
        self.may_go_on.wait()
        return super().launch(steps)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    folder, step_s, settings = sys.argv[1:]
    engine = Engine.from_pretrained(folder, device="cpu")
    engine = Engine(engine.checkpoint, SlowRunner(engine.checkpoint.model, float(step_s)))
    return serve(EngineBackend(engine, Channel(LocalExchange())), ServerSettings(**json.loads(settings)))


if __name__ == "__main__":
    sys.exit(main())
