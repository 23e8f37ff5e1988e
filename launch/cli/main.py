"""The command `lookahead`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import lp
from launch.cli import programs, ranks, start
from launch.cli.line import LineError, read_line
from launch.config.ending import leave

_HELP, _VERSION = ("-h", "--help", "help"), ("-V", "--version", "version")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: that of the command that is run, 2 for a line that cannot be understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in _HELP:
        return _show(programs.overview())
    if words[0] in _VERSION:
        return _show(f"lookahead-parallel {lp.__version__}")
    if len(words) == 2 and words[1] in _HELP and programs.tasks_of(words[0]):
        return _show(programs.describe_tasks(words[0]))
    try:
        line = read_line(words)
    except LineError as error:
        print(f"lookahead: {error}", file=sys.stderr)
        return 2
    if line.asks_for_help:
        return _show(programs.describe(line.name, line.asks_for_all))
    if line.program.spawns and line.ranks is not None and line.ranks > 1:
        return ranks.run_on_ranks(line.program.module, line.arguments, line.ranks)
    return start.run(line.program.module, line.arguments)


def program() -> NoReturn:
    """Runs the command line and ends the process."""
    leave(main())


def _show(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # its reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


if __name__ == "__main__":
    program()
