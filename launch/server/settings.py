"""Settings of the HTTP server. Knows nothing of the model it serves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from launch.server.access import read_keys
from lp.request import Pooling


class UnknownFields(StrEnum):
    """What is done with fields of a body that the server does not know.

    ignore: the answer has a header that names them (Warning), and the log a line. refuse: the request is refused.
    """

    ignore = "ignore"
    refuse = "refuse"


ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclass
class ServerSettings:
    """The settings of the server: where it listens, who may talk to it, and how many requests it takes.

    host: address to listen on. port: port to listen on; 0 picks a free one. model_name: the model's name for clients;
    None is the first of model_names that is no path. model_names: other names that requests may call it by; if there
    are none, that by which the command line names it. Without model_name, the checkpoint's name is one as well.
    max_running: requests in the engine at a time. max_waiting: requests that may wait
    beyond those. drain_s: seconds that accepted requests have to finish after SIGTERM. torchrun kills its ranks 30 s
    after the signal, and slow clients need up to 5 s of that to read their last answers. retry_after_s: the fewest
    seconds that a refused client is told to wait; a long queue makes it more. max_body_bytes: size of the largest
    request body. default_max_tokens: most new tokens of a request to /v1/completions that sets no limit. max_choices:
    most texts that one request may ask for: its prompts, times its choices of each. max_stored_responses: most
    responses of /v1/responses that are kept in memory, so that later requests can continue them. open_schemas: whether
    objects may have properties that their JSON schema does not name, where it has neither additionalProperties nor
    `strict`. pooling: how embeddings are made, of the last token's hidden state or of the mean of all.
    normalize_embeddings: whether they have the length 1. unknown_fields: what is done with fields of a body that the
    server does not know. access_log: whether each HTTP request is logged. page: whether there is a page for browsers at
    `/`.

    api_keys: keys that clients send as `Authorization: Bearer KEY`; without keys, the server is open to all.
    api_keys_file: a file with more of them, one a line; the environment variable LOOKAHEAD_API_KEYS may hold more.
    allowed_origins: origins whose pages a browser lets talk to the server, such as https://chat.example.org; `*` is
    every origin. allowed_hosts: names by which the server may be called beyond those of this machine; `*` is every
    name. See launch/server/access.py. tls_certificate, tls_key: PEM files; with them, the server speaks HTTPS.

    head_timeout_s: seconds that a connection has to send the head of a request. body_timeout_s: seconds that a request
    has to send its body. max_connections: open connections beyond which a new one is refused.

    trace: whether requests may ask what each of their steps did (`lookahead_trace`), which also tells how many requests
    share a step. page_kills_ranks: whether clients may end the process of a rank (POST /lookahead/ranks/N/kill), and
    watch how texts go on without it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    model_names: list[str] = field(default_factory=list)
    max_running: int = 64
    max_waiting: int = 256
    drain_s: float = 20.0
    retry_after_s: int = 1
    max_body_bytes: int = 4 * 1024 * 1024
    api_keys: list[str] = field(default_factory=list)
    api_keys_file: str | None = None
    allowed_origins: list[str] = field(default_factory=list)
    allowed_hosts: list[str] = field(default_factory=list)
    tls_certificate: str | None = None
    tls_key: str | None = None
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    max_connections: int = 1000
    default_max_tokens: int = 16
    max_choices: int = 1024
    max_stored_responses: int = 1000
    open_schemas: bool = False
    pooling: Pooling = Pooling.last
    normalize_embeddings: bool = True
    unknown_fields: UnknownFields = UnknownFields.ignore
    access_log: bool = False
    trace: bool = True
    page_kills_ranks: bool = False
    page: bool = True

    def check(self) -> None:
        """Raises ValueError naming the first setting that is out of range."""
        ranges: dict[str, tuple[float, float]] = {
            "port": (0, 65_535),
            "max_running": (1, 100_000),
            "max_waiting": (0, 1_000_000),
            "drain_s": (0, 86_400),
            "retry_after_s": (1, 86_400),
            "max_body_bytes": (1024, 1024**3),
            "default_max_tokens": (1, 10_000_000),
            "max_choices": (1, 100_000),
            "head_timeout_s": (0.1, 86_400),
            "body_timeout_s": (0.1, 86_400),
            "max_connections": (1, 1_000_000),
            "max_stored_responses": (0, 1_000_000),
        }
        for name, (smallest, largest) in ranges.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ValueError(f"server.{name}={value} is out of range: it must be from {smallest} to {largest}")
        if not self.host:
            raise ValueError("server.host is empty; use 127.0.0.1 for this machine alone, 0.0.0.0 for all addresses")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "server.tls_key" if self.tls_key is None else "server.tls_certificate"
            raise ValueError(f"{missing} is missing: HTTPS needs both a certificate and its key")
        for origin in self.allowed_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"server.allowed_origins holds {origin!r}, which is no origin; write it like https://example.org"
                )
        read_keys(self.api_keys, self.api_keys_file)
