"""The prompts of a load: real prompts in a random order, the same for every system, and prompts of a given length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.shared.categories import CategoryPrompt

# Attempts to cut a text so that it has exactly the wanted number of tokens: cutting changes how its end is split.
CUTS = 4


@dataclass(frozen=True)
class LoadRequest:
    """A request before a server's dialect is known.

    prompt: the text that is continued. question: what a chat is asked. max_tokens: length of the answer, which does not
    end earlier.
    """

    prompt: str
    question: str
    max_tokens: int


class PromptDeck:
    """Prompts in a random order. None is drawn twice before all were drawn; then they are shuffled anew.

    num_drawn: prompts drawn so far. num_prompts: different ones.
    """

    def __init__(self, prompts: Sequence[CategoryPrompt], tokenizer: Any, longest: int, seed: int):
        """longest: the most tokens of a prompt; longer ones are left out. Raises ValueError if none is left."""
        self._tokenizer = tokenizer
        texts = [(prompt.for_model(tokenizer), prompt.question or prompt.text) for prompt in prompts]
        self._pairs = [pair for pair in texts if len(tokenizer.encode(pair[0])) <= longest]
        if not self._pairs:
            raise ValueError(f"no prompt has {longest} tokens or fewer; raise --longest-prompt or take other --prompts")
        self._random = random.Random(seed)
        self._waiting: list[tuple[str, str]] = []
        self.num_drawn = 0

    @property
    def num_prompts(self) -> int:
        return len(self._pairs)

    def draw(self, max_tokens: int) -> LoadRequest:
        prompt, question = self._next()
        return LoadRequest(prompt, question, max_tokens)

    def draw_many(self, number: int, max_tokens: int) -> list[LoadRequest]:
        return [self.draw(max_tokens) for _ in range(number)]

    def draw_of_length(self, num_tokens: int, max_tokens: int) -> LoadRequest:
        """A request whose prompt is made of real prompts and has `num_tokens` tokens, as nearly as text allows."""
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            tokens = [*tokens, *self._encode(self._next()[0] + "\n\n")]
        text, kept = "", num_tokens
        for _ in range(CUTS):
            text = self._tokenizer.decode(tokens[:kept], skip_special_tokens=True)
            surplus = len(self._tokenizer.encode(text)) - num_tokens
            if surplus == 0 or not 0 < kept - surplus <= len(tokens):
                break
            kept -= surplus
        return LoadRequest(text, text, max_tokens)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _next(self) -> tuple[str, str]:
        if not self._waiting:
            self._waiting = self._random.sample(self._pairs, len(self._pairs))
        self.num_drawn += 1
        return self._waiting.pop()


def longest_tokens(requests: Sequence[LoadRequest], tokenizer: Any) -> int:
    """The most tokens that a sequence of these requests has, its prompt and its answer together."""
    lengths = (len(tokenizer.encode(one.prompt)) + one.max_tokens for one in requests)
    return max(chain([1], lengths))
