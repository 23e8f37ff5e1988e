"""The parts of a server that its routes share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response

from launch.backend import Backend
from launch.server import errors
from launch.server.access import read_keys
from launch.server.conversion import Conversion
from launch.server.metrics import Metrics
from launch.server.openai_replies import TokenNames
from launch.server.responses import ResponseStore
from launch.server.service import Service
from launch.server.settings import ServerSettings
from lp.grammar.settings import Grammar, GrammarError

T = TypeVar("T")
# Of the responses that are kept for later requests, as JSON.
MOST_STORED_BYTES = 64 * 1024**2

# Bytes of a body from which its texts count as long: a shorter one is tokenized in about 50 ms at most.
LONG_BODY = 64 * 1024


def names_of_model(name: str | None, others: Sequence[str], own: str) -> list[str]:
    """What clients may call the model, its main name first.

    name, others: the settings of the server. own: the checkpoint's name, which counts unless there is a `name`. Paths
    come last: where files lie is no name to show.
    """
    names = [*others, own] if name is None else [name, *others]

    def is_path(one: str) -> bool:
        return one not in (name, own) and os.path.exists(os.path.expanduser(one))

    return sorted(dict.fromkeys(names), key=is_path)


class Context:
    """Makes the parts of a server and holds them."""

    def __init__(self, backend: Backend, settings: ServerSettings):
        self.settings = settings
        self.backend = backend
        self.checkpoint = backend.request_builder.checkpoint
        self.model_names = names_of_model(settings.model_name, settings.model_names, self.checkpoint.name)
        self.model_name = self.model_names[0]
        self.started_at = int(time.time())
        self.keys = read_keys(settings.api_keys, settings.api_keys_file)
        self.metrics = Metrics(self.model_name)
        self.service = Service(settings.max_running, settings.max_waiting, self.metrics, settings.retry_after_s)
        self.metrics.watch(
            lambda: self.service.num_running,
            lambda: self.service.num_waiting,
            lambda: backend.request_builder.budget.usage(self.service.lengths),
        )
        self.metrics.watch_ranks(backend.status, lambda: backend.num_losses)
        self.metrics.watch_step_times(lambda: backend.step_times)
        self.conversion = Conversion(
            backend.request_builder,
            self.model_names,
            settings.default_max_tokens,
            settings.max_choices,
            settings.open_schemas,
        )
        self.responses = ResponseStore(settings.max_stored_responses, MOST_STORED_BYTES)
        self.names = TokenNames(self.checkpoint.tokenizer)
        # Unknown fields of bodies that the log has named.
        self.logged_fields: set[str] = set()
        # A text must not block the event loop, nor a long text the short ones. The tokenizer may be used by several
        # threads, as nobody asks it to truncate or pad, which alone would change it.
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")
        self._compiling = ThreadPoolExecutor(1, "grammar")
        self._tokenizing_long = ThreadPoolExecutor(1, "tokenizer of long texts")
        # Now, when nobody streams yet: it would hold up all streams when the first grammar comes.
        self._compiling.submit(self.checkpoint.grammars.warm_up)

    async def tokenizing(self, work: Callable[[], T], num_bytes: int = 0) -> T:
        """Runs work that needs the tokenizer in a thread apart from the event loop, one piece at a time.

        num_bytes: about how much text there is. Short texts do not wait for long ones.
        """
        thread = self._tokenizing if num_bytes < LONG_BODY else self._tokenizing_long
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def refuse_host(self, host: str) -> Response:
        """The answer to a request that calls the server by a name it does not have."""
        error = errors.unknown_host(host)
        self.metrics.count_refused(error.reason)
        return error.response()

    async def compile(self, grammar: Grammar | None) -> None:
        """Compiles a grammar in a thread of its own, so that nobody else's request waits. Faults are told later."""
        if grammar is not None:
            with suppress(GrammarError):
                await asyncio.get_running_loop().run_in_executor(
                    self._compiling, self.checkpoint.grammars.compile, grammar
                )

    def close(self) -> None:
        pools = self._tokenizing, self._tokenizing_long, self._compiling
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


async def context(request: Request) -> Context:
    """A FastAPI dependency: the server that a request reached."""
    return request.app.state.server


async def authorise(request: Request) -> None:
    """A FastAPI dependency that refuses requests without a valid API key."""
    if await owner(request) is None and (await context(request)).keys:
        raise errors.not_authorised()


async def owner(request: Request) -> str | None:
    """A FastAPI dependency: a digest of the API key; None where the server has no keys.

    Requests with the same owner may share drafts.
    """
    keys = (await context(request)).keys
    return keys and keys.owner_of(request.headers)


async def has_place(request: Request) -> None:
    """A FastAPI dependency that refuses a request before its body is read if the service would refuse it now."""
    (await context(request)).service.check_open()
