"""Settings of the HTTP server. Knows nothing of the model it serves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ServerSettings:
    """The settings of the server: where it listens and how many requests it takes.

    host: address to listen on. port: port to listen on; 0 picks a free one. model_name: the model's name for clients;
    None is the checkpoint's name. max_running: requests in the engine at a time. max_waiting: requests that may wait
    beyond those. drain_s: seconds that accepted requests have to finish after SIGTERM. torchrun kills its ranks 30 s
    after the signal, and slow clients need up to 5 s of that to read their last answers. retry_after_s: seconds that a
    refused client is told to wait. max_body_bytes: size of the largest request body. api_keys: keys that clients send
    as `Authorization: Bearer KEY`; without keys, the server is open to all. default_max_tokens: most new tokens of a
    request to /v1/completions that sets no limit. max_choices: most texts that one request may ask for: its prompts,
    times its choices of each. access_log: whether each HTTP request is logged.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    max_running: int = 64
    max_waiting: int = 64
    drain_s: float = 20.0
    retry_after_s: int = 1
    max_body_bytes: int = 4 * 1024 * 1024
    api_keys: list[str] = field(default_factory=list)
    default_max_tokens: int = 16
    max_choices: int = 256
    access_log: bool = False

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
        }
        for name, (smallest, largest) in ranges.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ValueError(f"server.{name}={value} is out of range: it must be from {smallest} to {largest}")
        if not self.host:
            raise ValueError("server.host is empty; use 127.0.0.1 for this machine alone, 0.0.0.0 for all addresses")
        if any(not key or not key.isascii() for key in self.api_keys):
            raise ValueError("server.api_keys holds an empty key or one that is not ASCII")
