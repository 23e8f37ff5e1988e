"""The records of a sweep, and the folder that holds them.

A Point is one combination of settings, a Run is one measurement of it; each is written as one JSON object. A sweep
whose folder holds measurements already is resumed: these are not repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# runtime: this project. generate, generate_static: transformers' `generate` with its usual and with its static cache.
# prompt_lookup, assisted: transformers' `generate` with prompt look-up, and with a draft model.
EngineName = Literal["runtime", "generate", "generate_static", "prompt_lookup", "assisted"]


@dataclass(frozen=True)
class Point:
    """One combination of settings.

    engine: see EngineName. mode: single, lp, dp, tp, pp, lp x tp or dp x tp. method: the decoding method with its
    settings, such as "lookahead (7, 5, 7)". settings: all settings that decide the result, as JSON values by group.
    """

    engine: EngineName
    mode: str
    ranks: int
    method: str
    settings: dict[str, Any] = field(hash=False)

    @property
    def key(self) -> str:
        """A key that is equal for points with the same settings, in this sweep or a later one."""
        decisive = {"engine": self.engine, "ranks": self.ranks, "settings": self.settings}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The name of the point in tables and plots."""
        if self.engine != "runtime":
            return self.method
        return f"{self.mode} {self.method}" if self.ranks == 1 else f"{self.mode} x{self.ranks} {self.method}"


@dataclass
class TextRecord:
    """The text that continues one prompt.

    tokens: number of new tokens. ttft_s: seconds to the first token. decode_s: seconds to the last token. digest:
    digest of the token ids, equal for equal texts.
    """

    id: str
    prompt_tokens: int
    tokens: int
    steps: int
    ttft_s: float
    decode_s: float
    digest: str


@dataclass
class RankFigures:
    """What one rank stored and sent.

    peak_bytes: on a CPU, the largest resident set of the process; on a GPU, torch's largest allocation.
    num_collectives, bytes_sent, communication_s: traffic of all prompts; the seconds include waiting.
    """

    rank: int
    device: str
    weight_bytes: int
    cache_bytes: int
    peak_bytes: int
    num_collectives: int
    bytes_sent: int
    communication_s: float


@dataclass
class Run:
    """One measurement of a point, or the reason why it failed.

    point: key of the point. round: number of the round, from 0. error: message of the rank that failed first. texts,
    ranks: empty if the measurement failed. accepted_lengths: number of steps by the number of tokens that they yielded.
    rows: rows of the trees of all steps. seconds: time in which all texts were generated, with prompts and without
    loading the model. wall_s: seconds from the start of the ranks to their end. concurrency: requests in flight at a
    time. cores: the cores that each rank was pinned to. oversubscribed: whether there were too few cores. hardware: a
    description of the machine.
    """

    point: str
    round: int
    status: Literal["done", "failed"]
    error: str | None = None
    texts: list[TextRecord] = field(default_factory=list)
    ranks: list[RankFigures] = field(default_factory=list)
    accepted_lengths: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    concurrency: int = 1
    cores: list[list[int]] = field(default_factory=list)
    oversubscribed: bool = False
    hardware: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    @property
    def steps(self) -> int:
        return sum(text.steps for text in self.texts)

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second, over the time in which all texts were generated."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Run:
        texts = [TextRecord(**text) for text in values["texts"]]
        ranks = [RankFigures(**rank) for rank in values["ranks"]]
        return Run(**{**values, "texts": texts, "ranks": ranks})


log = logging.getLogger("lookahead")
KEPT = "what was measured is kept; make room and give the same output again"


class SweepFolder:
    """Reads and writes the folder of a sweep.

    Raises ValueError if it cannot write, for instance to a full disk. What is in the folder by then stays.
    """

    def __init__(self, path: Path):
        self.path = path
        self.logs = path / "logs"
        self._runs = path / "runs.jsonl"
        with self.writing("name another folder"):
            self.logs.mkdir(parents=True, exist_ok=True)
            self._runs.touch()

    @contextmanager
    def writing(self, advice: str = KEPT) -> Iterator[None]:
        """Raises ValueError if the body cannot write. advice: what the user can do about it."""
        try:
            yield
        except OSError as error:
            raise ValueError(f"output={self.path} cannot be written: {error.strerror or error}; {advice}") from error

    def write_points(self, points: Sequence[Point]) -> None:
        self.write("points.json", json.dumps([dataclasses.asdict(point) for point in points], indent=1))

    def append(self, run: Run) -> None:
        """Adds a line for a measurement. The lines before it stay whole, whatever happens."""
        self._append(run.to_json() + "\n")

    def runs(self) -> list[Run]:
        """Returns all measurements, failures included. A line that was only partly written is left out."""
        found = []
        lines = self._runs.read_text(encoding="utf-8", errors="replace").split("\n")
        if lines[-1]:
            self._append("\n")  # the next measurement must begin a line of its own
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                found.append(Run.from_dict(json.loads(line)))
            except (json.JSONDecodeError, TypeError, KeyError):
                log.warning("%s, line %d is not a whole measurement and is left out", self._runs, number)
        return found

    def _append(self, text: str) -> None:
        with self.writing(), open(self._runs, "a", encoding="utf-8") as file:
            file.write(text)

    def write(self, name: str, text: str) -> None:
        """Replaces a file of the folder; it is never half written."""
        partial = self.path / f".{name}.partial"
        with self.writing():
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.path / name)


def latest(runs: Sequence[Run]) -> list[Run]:
    """Returns the last run of each point and round; it may have succeeded after an earlier failure."""
    return list({(run.point, run.round): run for run in runs}.values())
