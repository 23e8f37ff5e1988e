"""The bodies of requests as each kind of server wants them. All ask for the same: greedy text of a fixed length."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from benchmarks.load.drive import MakeBody
from benchmarks.load.prompts import LoadRequest


class Api(StrEnum):
    """The route that is asked."""

    completions = "completions"
    chat = "chat"

    @property
    def path(self) -> str:
        return {Api.completions: "/v1/completions", Api.chat: "/v1/chat/completions"}[self]


def with_ignore_eos(api: Api, model: str | None = None) -> MakeBody:
    """This project's dialect, which is vLLM's. model: the name that the server wants; None names none."""

    def make(request: LoadRequest) -> tuple[str, dict[str, Any]]:
        named = {"model": model} if model else {}
        return api.path, {**named, **_shared(api, request), "ignore_eos": True}

    return make


def of_transformers(api: Api) -> MakeBody:
    """The dialect of `transformers serve`, which has no ignore_eos: an end token that no model has takes its place."""

    def make(request: LoadRequest) -> tuple[str, dict[str, Any]]:
        config = {"eos_token_id": -1, "do_sample": False, "max_new_tokens": request.max_tokens}
        return api.path, {**_shared(api, request), "generation_config": json.dumps(config)}

    return make


def _shared(api: Api, request: LoadRequest) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": request.prompt}
    if api is Api.chat:
        asked = {"messages": [{"role": "user", "content": request.question}]}
    return {
        **asked,
        "max_tokens": request.max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
