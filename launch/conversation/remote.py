"""Answers by a running server, over its OpenAI route /v1/chat/completions. Knows no engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from launch.conversation.model import AnswerError, Figures, Options, Part
from lp.sampling.settings import Sampling
from lp.text.chat_template import Message

CONNECT_S = 10.0


class RemoteModel:
    """A ChatModel. Use it within `with connected(...)`."""

    def __init__(self, client: httpx.Client, url: str, name: str):
        self.where = f"{name} at {url}"
        self._client, self._url, self._name = client, url, name

    def check(self, options: Options) -> None:
        options.sampling.check()

    def answer(self, messages: Sequence[Message], options: Options) -> Generator[Part, None, None]:
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=self._body(messages, options)) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                yield from _parts(response.iter_lines())
        except httpx.TransportError as error:
            raise AnswerError(f"the server at {self._url} cannot be reached any more: {_reason(error)}") from None

    def _body(self, messages: Sequence[Message], options: Options) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._name, "messages": [*messages], "stream": True}
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body |= _sampling(options.sampling)
        if options.max_tokens is not None:
            body["max_tokens"] = options.max_tokens
        if options.decode:
            body["decode"] = {**options.decode}
        return body


@contextmanager
def connected(url: str, api_key: str | None) -> Iterator[RemoteModel]:
    """Yields the model of a server. url: such as http://127.0.0.1:8000, with or without /v1.

    Raises ValueError if no such server answers there.
    """
    url = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=CONNECT_S)  # a long prompt may take minutes until its first token
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=timeout)
    except (httpx.InvalidURL, ValueError) as error:  # ValueError: a header that is not ASCII, a proxy that is wrong
        raise ValueError(f"url={url} cannot be used: {error}") from None
    with client:
        yield RemoteModel(client, url, _model_name(client, url))


def _model_name(client: httpx.Client, url: str) -> str:
    try:
        response = client.get("/v1/models", timeout=CONNECT_S)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise ValueError(f"url={url} is no address of a server; write it like url=http://127.0.0.1:8000") from None
    except httpx.TransportError as error:
        raise ValueError(
            f"url={url} cannot be reached: {_reason(error)}; is launch/serve.py running there, and on that port?"
        ) from None
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise ValueError(f"url={url}: {_refusal(response)}; give it as api_key=KEY or as LOOKAHEAD_API_KEY")
    try:
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        raise ValueError(
            f"url={url} does not answer as an OpenAI server does (HTTP status {response.status_code} for /v1/models)"
        ) from None


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """The fields of the body, by their names in the server's API. Log-probabilities are not shown, so not asked for."""
    given = {key: value for key, value in dataclasses.asdict(sampling).items() if value not in (None, {}, [])}
    given.pop("logprobs", None)
    if "min_new_tokens" in given:
        given["min_tokens"] = given.pop("min_new_tokens")
    return given


def _parts(lines: Iterator[str]) -> Iterator[Part]:
    """The parts of a stream of server-sent events. Raises AnswerError for an error in it, and if it is cut off."""
    num_tokens = 0
    is_over = False
    for line in lines:
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        event = _json(line.removeprefix("data:"))
        if error := event.get("error"):
            raise AnswerError(_message(error))
        figures = _figures(event)
        for choice in event.get("choices") or []:
            text = (choice.get("delta") or {}).get("content") or ""
            new = figures.tokens - num_tokens if figures else 0
            num_tokens += new
            is_over |= choice.get("finish_reason") is not None
            if text or is_over:
                yield Part(text, new, figures, choice.get("finish_reason"))
    if not is_over:
        raise AnswerError("the server ended the answer before it was finished")


def _figures(event: dict[str, Any]) -> Figures | None:
    """What this project's server says of the answer so far; other servers do not."""
    match event.get("lookahead"):
        case {"tokens": int(tokens), "tokens_per_step": float(per_step), "tokens_per_s": float(per_s)}:
            return Figures(tokens, per_step, per_s)
    return None


def _json(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise AnswerError("the server sent something that is not an event of OpenAI's API")
    return event


def _refusal(response: httpx.Response) -> AnswerError:
    try:
        error = response.json()["error"]
        is_too_long = isinstance(error, dict) and error.get("code") == "context_length_exceeded"
        return AnswerError(_message(error), is_too_long)
    except (ValueError, LookupError, TypeError):
        return AnswerError(f"the server answers with HTTP status {response.status_code}")


def _message(error: Any) -> str:
    return " ".join(str(error.get("message") if isinstance(error, dict) else error).split())


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
