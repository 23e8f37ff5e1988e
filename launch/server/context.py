"""The parts of a server that its routes share."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from fastapi import Request

from launch.backend import Backend
from launch.server import errors
from launch.server.metrics import Metrics
from launch.server.openai.conversion import Conversion
from launch.server.openai.tokens import TokenNames
from launch.server.service import Service
from launch.server.settings import ServerSettings
from lp.grammar.settings import Grammar, GrammarError

T = TypeVar("T")


class Context:
    """Makes the parts of a server and holds them."""

    def __init__(self, backend: Backend, settings: ServerSettings):
        self.settings = settings
        self.backend = backend
        self.checkpoint = backend.request_builder.checkpoint
        self.model_name = settings.model_name or self.checkpoint.name
        self.started_at = int(time.time())
        self.metrics = Metrics(self.model_name)
        self.service = Service(settings.max_running, settings.max_waiting, self.metrics)
        self.metrics.watch(lambda: self.service.num_running, lambda: self.service.num_waiting)
        self.metrics.watch_ranks(backend.status, lambda: backend.num_losses)
        self.conversion = Conversion(
            backend.request_builder, self.model_name, settings.default_max_tokens, settings.max_choices
        )
        self.names = TokenNames(self.checkpoint.tokenizer)
        # The tokenizer must not be used by two threads at a time, and a long text must not block the event loop.
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")
        self._compiling = ThreadPoolExecutor(1, "grammar")

    async def tokenizing(self, work: Callable[[], T]) -> T:
        """Runs work that needs the tokenizer in a thread apart from the event loop, one piece at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    async def compile(self, grammar: Grammar | None) -> None:
        """Compiles a grammar in a thread of its own, so that nobody else's request waits. Faults are told later."""
        if grammar is not None:
            with suppress(GrammarError):
                await asyncio.get_running_loop().run_in_executor(
                    self._compiling, self.checkpoint.grammars.compile, grammar
                )

    def close(self) -> None:
        for pool in (self._tokenizing, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)


async def context(request: Request) -> Context:
    """A FastAPI dependency: the server that a request reached."""
    return request.app.state.server


async def authorise(request: Request) -> None:
    """A FastAPI dependency that refuses requests without a valid API key."""
    keys = (await context(request)).settings.api_keys
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    valid = [hmac.compare_digest(given.strip().encode(), key.encode()) for key in keys]
    if keys and not (scheme.lower() == "bearer" and any(valid)):
        raise errors.not_authorised()


async def owner(request: Request) -> str | None:
    """A FastAPI dependency: a digest of the API key; None where the server has no keys.

    Requests with the same owner may share drafts.
    """
    if not (await context(request)).settings.api_keys:
        return None
    return hashlib.sha256(request.headers.get("authorization", "").encode()).hexdigest()[:16]


async def has_place(request: Request) -> None:
    """A FastAPI dependency that refuses a request before its body is read if the service would refuse it now."""
    (await context(request)).service.check_open()
