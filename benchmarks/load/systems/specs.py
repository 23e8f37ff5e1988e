"""The systems under load: which there are by the command line, and what is the same for all of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.load.drive import MakeBody

HELP = (
    "a system to measure, repeatable. NAME=OVERRIDES: our server with these settings (auto=, "
    "plain=decode=autoregressive, 'lp=parallel=lp decode=auto'); NAME=servers:N [OVERRIDES]: N of our servers of one "
    "rank each, by turn; NAME=transformers [OPTIONS]: `transformers serve` with continuous batching; NAME=url:ADDRESS: "
    "a running server. Default: auto=, plain=decode=autoregressive, transformers=transformers"
)
DEFAULT = ("auto=", "plain=decode=autoregressive", "transformers=transformers")


class SystemKind(StrEnum):
    """What serves the requests."""

    own = "own"
    servers = "servers"
    transformers = "transformers"
    url = "url"


class Unavailable(Exception):
    """A system that cannot be had here. The message is the reason, in one line."""


@dataclass(frozen=True)
class SystemSpec:
    """A system as the command line names it.

    number: of servers. words: settings or options of the server. url: of a running server.
    """

    name: str
    kind: SystemKind
    number: int = 1
    words: tuple[str, ...] = ()
    url: str = ""

    @property
    def described(self) -> str:
        what = {
            SystemKind.own: "this project",
            SystemKind.servers: f"{self.number} servers of this project by turn, one rank each",
            SystemKind.transformers: "transformers serve --continuous-batching",
            SystemKind.url: "a running server",
        }[self.kind]
        return f"{what}{', ' if self.words else ''}{' '.join(self.words)}"


def read_system(text: str) -> SystemSpec:
    """Reads NAME=WHAT; see HELP. Raises ValueError."""
    name, equals, what = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"--system {text!r} is not NAME=OVERRIDES, such as plain=decode=autoregressive")
    try:
        first, *words = shlex.split(what) or [""]
    except ValueError as error:
        raise ValueError(f"--system {text!r}: {error}") from None
    if first.startswith("url:"):
        return SystemSpec(name, SystemKind.url, url=_check_url(first.removeprefix("url:")))
    if first == "transformers":
        return SystemSpec(name, SystemKind.transformers, words=tuple(words))
    number = 1
    kind = SystemKind.own
    if first.startswith("servers:"):
        kind, count = SystemKind.servers, first.removeprefix("servers:")
        if not count.isdecimal() or int(count) < 1:
            raise ValueError(f"--system {text!r}: the number of servers must be at least 1, as in servers:2")
        number = int(count)
    elif first:
        words.insert(0, first)
    if wrong := [word for word in words if "=" not in word]:
        raise ValueError(f"--system {text!r}: {wrong[0]!r} is not KEY=VALUE")
    return SystemSpec(name, kind, number, tuple(words))


def read_systems(texts: Sequence[str], urls: Sequence[str]) -> list[SystemSpec]:
    """The systems of --system and --url, or the DEFAULT. Raises ValueError."""
    found = [read_system(text) for text in texts or ([] if urls else DEFAULT)]
    for number, url in enumerate(urls, start=1):
        found.append(SystemSpec("url" if len(urls) == 1 else f"url{number}", SystemKind.url, url=_check_url(url)))
    names = [one.name for one in found]
    if double := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two systems are called {double[0]!r}; give each --system a name of its own")
    return found


def _check_url(url: str) -> str:
    if not re.match(r"https?://[^/]+", url):
        raise ValueError(f"{url!r} is not the address of a server, such as http://127.0.0.1:8000")
    return url.rstrip("/")


@dataclass(frozen=True)
class ServerNeeds:
    """What a server that is started must be able to do.

    model: folder. num_ranks: of our own servers. threads: of each rank. most_streams: requests at a time. longest:
    tokens of the longest sequence.
    """

    model: str
    dtype: str
    num_ranks: int
    threads: int
    most_streams: int
    longest: int


@dataclass(frozen=True)
class RunningSystem:
    """A system that serves.

    urls: of its servers. find_trouble: why it no longer serves; None if it does. has_metrics: whether GET /metrics may
    show counters.
    """

    spec: SystemSpec
    urls: list[str]
    make_body: MakeBody
    find_trouble: Callable[[], str | None]
    has_metrics: bool = True

    @property
    def name(self) -> str:
        return self.spec.name
