"""When requests arrive: at random with a rate, or as a trace says, which also says how long they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SECONDS = {"ms": 1e-3, "s": 1.0}
KEYS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True)
class Arrival:
    """One request of a trace. at_s: seconds after the first. Lengths are in tokens."""

    at_s: float
    input_length: int
    output_length: int


def poisson_times(rate: float, number: int, seed: int) -> list[float]:
    """Seconds from the start at which requests arrive in a Poisson process of `rate` a second. The first is at 0."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(0, number - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:number]


def read_trace(path: Path, unit: str = "ms", speed: float = 1.0, scale: float = 1.0) -> list[Arrival]:
    """The requests of a trace in the order of their times: a file of JSON lines with the KEYS.

    Other keys are ignored, and empty lines are skipped. unit: of the timestamps, one of SECONDS. speed: how many times
    faster than in the trace the requests arrive. scale: factor of all lengths. Raises ValueError if the file cannot be
    read or a line is malformed; the message has the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--trace {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_read_line(line))
            except ValueError as error:
                raise ValueError(f"--trace {path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"--trace {path} holds no request; each line is like {_example()}")
    found.sort(key=lambda entry: entry[0])
    first, factor = found[0][0], SECONDS[unit] / speed
    return [
        Arrival((at - first) * factor, max(1, round(length * scale)), max(1, round(new * scale)))
        for at, length, new in found
    ]


def _read_line(line: str) -> tuple[float, int, int]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}); each line is like {_example()}") from None
    if not isinstance(entry, dict) or not all(_is_number(entry.get(key)) for key in KEYS):
        raise ValueError(f"no object with numbers for {', '.join(KEYS)}; each line is like {_example()}")
    timestamp, length, new = (entry[key] for key in KEYS)
    if timestamp < 0 or not all(value >= 1 and value == int(value) for value in (length, new)):
        raise ValueError("a timestamp must not be negative, and lengths must be whole numbers above 0")
    return float(timestamp), int(length), int(new)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _example() -> str:
    return json.dumps(dict(zip(KEYS, (1250, 300, 40), strict=True)))
