"""The requests under which ranks are killed: greedy, sampled with a seed, greedy with each token's log-probability.

The last names every token, so that not only the text can be compared; a server that recovers treats it in its own way,
as what was emitted must be emitted with the same log-probabilities.
"""

from __future__ import annotations

from typing import Any

import httpx

from benchmarks.shared.report import read_prompts

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 7},
    "log-probabilities": {"temperature": 0, "logprobs": 0},
}


def long_prompt(url: str, num_tokens: int, room: int) -> list[int]:
    """Ids of our own workload, all in one: `num_tokens` of them, or as many as the context holds beside `room`."""
    text = "\n\n".join(read_prompts(None, 1000))
    answer = httpx.post(f"{url}/tokenize", json={"prompt": text}, timeout=60.0).raise_for_status().json()
    return answer["tokens"][: min(num_tokens, answer["max_model_len"] - room)]


def body(kind: str, prompt: list[int] | str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """Of POST /v1/completions, with exactly `max_tokens` tokens to come."""
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **KINDS[kind], **more}
