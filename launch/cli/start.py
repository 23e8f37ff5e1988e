"""Runs a command in this process, from the first import on.

    python -P -m launch.cli.start MODULE [KEY=VALUE ...]

is a process of such a command, one of its ranks for instance. -P: nothing is imported from the current folder, which
may have a launch.py or an lp.py of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

from launch.config.ending import leave

INTERRUPTED = 128 + signal.SIGINT
# The extra of the package without which a command cannot even be imported.
PROJECT, EXTRAS = "lookahead-parallel", {"serve": "serve"}


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs `run` in a process of its own."""
    return [sys.executable, "-P", "-m", "launch.cli.start", module, *arguments]


def run(module: str, arguments: Sequence[str]) -> int:
    """Runs the command of launch/MODULE.py and returns its exit code. Ctrl-C while it is imported ends this process."""
    os.environ["PYTHONSAFEPATH"] = "1"  # for all processes that the command starts: as -P does
    sys.argv[1:] = arguments
    try:
        with_handler = signal.signal(signal.SIGINT, _leave)
        program = import_module(f"launch.{module}")
        signal.signal(signal.SIGINT, with_handler)
        return program.main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if module not in EXTRAS or missing in ("", "lp", "parallel", "launch"):
            raise
        print(f"lookahead: {missing} is not installed: pip install '{PROJECT}[{EXTRAS[module]}]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process at once: libraries that are being imported do not expect an exception, and nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    leave(run(sys.argv[1], sys.argv[2:]))
