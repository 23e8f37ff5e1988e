"""The requests during which ranks are killed: greedy, sampled with a seed, greedy with log-probabilities.

The answer to the last kind names every token, so that tokens can be compared and not only text. A server recovers such
a request in a special way, because it must not change the log-probabilities that the client already has.
"""

from __future__ import annotations

from typing import Any

import httpx

from benchmarks.shared.inputs import read_prompts

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 7},
    "log-probabilities": {"temperature": 0, "logprobs": 0},
}


def long_prompt(url: str, num_tokens: int, room: int) -> list[int]:
    """Token ids of our own workload joined into one prompt.

    It has `num_tokens` tokens, or as many as the context holds if it keeps `room` tokens for the answer.
    """
    text = "\n\n".join(read_prompts(None, 1000))
    answer = httpx.post(f"{url}/tokenize", json={"prompt": text}, timeout=60.0).raise_for_status().json()
    return answer["tokens"][: min(num_tokens, answer["max_model_len"] - room)]


def body(kind: str, prompt: list[int] | str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a POST /v1/completions whose answer has exactly `max_tokens` tokens. kind: one of KINDS."""
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **KINDS[kind], **more}
