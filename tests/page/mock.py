"""A server of the page without a model: it sends recorded steps, and does what a test asks of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from launch.server.page_files import page
from lp.trace import LEGEND
from tests.page import recording

LOST_S = 5.0  # for which a killed rank is gone


@dataclass
class Mock:
    """What the server is like, and what it has been asked. Tests change the fields while it runs.

    breaks_after: the step after which a stream breaks off; None lets it go on. drafts_ahead: whether rank 1 drafts
    ahead of the steps of rank 0.
    """

    text: str = recording.TEXT
    step_s: float = 0.004
    key: str | None = None
    may_kill: bool = False
    has_trace: bool = True
    has_template: bool = True
    breaks_after: int | None = None
    drafts_ahead: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    vocabulary: recording.Vocabulary = field(default_factory=recording.Vocabulary)
    lost_at: float | None = None
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(page)
        app.add_api_route("/lookahead/state", self.state, methods=["GET"])
        app.add_api_route("/lookahead/tokens", self.tokens, methods=["POST"])
        app.add_api_route("/lookahead/ranks/{rank}/kill", self.kill, methods=["POST"])
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"])
        app.add_api_route("/v1/completions", self.complete, methods=["POST"])
        return app

    async def state(self) -> Response:
        if not self.has_trace:
            return _error(404, "there is no GET /lookahead/state")
        is_lost = self.lost_at is not None and time.monotonic() - self.lost_at < LOST_S
        ranks = [{"rank": 0, "state": "serving"}, {"rank": 1, "state": "lost" if is_lost else "serving"}]
        return JSONResponse(
            {
                "model": "a-model",
                "methods": ["autoregressive", "jacobi", "prompt_lookup", "lookahead", "auto"],
                "legend": LEGEND,
                "ranks": ranks,
                "epoch": 1,
                "curve": recording.CURVE,
                "curve_origin": "learnt from 1,204 steps, the last 3 min ago",
                "may_kill": self.may_kill,
                "needs_key": self.key is not None,
            }
        )

    async def models(self, request: Request) -> Response:
        return self.refusal(request) or JSONResponse({"object": "list", "data": [{"id": "a-model"}]})

    async def tokens(self, request: Request) -> Response:
        if refusal := self.refusal(request):
            return refusal
        ids = (await request.json())["ids"]
        return JSONResponse({"texts": [self.vocabulary.texts[token] for token in ids]})

    async def kill(self, rank: int) -> Response:
        self.lost_at = time.monotonic()
        return Response(status_code=202)

    async def chat(self, request: Request) -> Response:
        if not self.has_template:
            return _error(400, "the model 'a-model' has no chat template; use /v1/completions")
        return await self.answer(request, lambda text: {"delta": {"content": text}})

    async def complete(self, request: Request) -> Response:
        return await self.answer(request, lambda text: {"text": text})

    async def answer(self, request: Request, choice: Any) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if refusal := self.refusal(request):
            return refusal
        if not self.has_trace and "lookahead_trace" in body:
            return _error(400, "lookahead_trace is not a field that this server knows; leave it out", "lookahead_trace")
        if not body.get("stream"):
            message = {"message": {"role": "assistant", "content": self.text}, "finish_reason": "stop", "index": 0}
            usage = {"completion_tokens": len(self.vocabulary.split(self.text))}
            return JSONResponse({"choices": [message], "usage": usage})
        return StreamingResponse(self.events(body, choice), media_type="text/event-stream")

    async def events(self, body: dict[str, Any], choice: Any) -> AsyncIterator[str]:
        count = 0
        for text, trace in recording.steps(self.text, body["decode"]["method"], self.vocabulary):
            if count >= body["max_tokens"]:
                break
            await asyncio.sleep(self.step_s)
            trace = recording.drafted_ahead(trace) if self.drafts_ahead else trace
            count += len(trace["emitted"])
            chunk = {"choices": [{"index": 0, **choice(text), "finish_reason": None}]}
            yield _event({**chunk, "lookahead": trace} if body.get("lookahead_trace") else chunk)
            if trace["step"] == self.breaks_after:
                return
        yield _event({"choices": [{"index": 0, **choice(""), "finish_reason": "stop"}]})
        yield _event({"choices": [], "usage": {"completion_tokens": count}, "lookahead": {"tokens": count}})
        yield "data: [DONE]\n\n"

    def refusal(self, request: Request) -> Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "the API key is missing or wrong")
        return None


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _error(status: int, message: str, param: str | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "param": param}}, status)


@contextmanager
def running(mock: Mock, port: int = 0) -> Iterator[Mock]:
    """Serves the mock in a thread. port: 0 picks a free one."""
    config = uvicorn.Config(mock.app(), port=port, log_level="warning", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the mock did not start"
        time.sleep(0.01)
    mock.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield mock
    finally:
        server.should_exit = True
        thread.join(10)
