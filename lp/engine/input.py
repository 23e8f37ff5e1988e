"""Turns what a caller asks for into a complete, checked Request: with tokens, defaults and a seed, within limits.

Knows a model by its checkpoint's description alone, and no engine.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lp.grammar.settings import Grammar
from lp.methods.autoregressive import Autoregressive
from lp.methods.registry import DEFAULT, METHODS
from lp.model.checkpoint_info import CheckpointInfo
from lp.request import DecodeLimits, DecodingMethod, ModelTraits, Pooling, Request
from lp.sampling.settings import Sampling
from lp.scheduling.kv_budget import KVBudget, RequestTooLarge
from lp.text import chat_template
from lp.text.chat_template import Message, Rendering
from lp.text.stopping import Stopping

# A text, token ids, or the messages of a conversation.
Prompt = str | Sequence[int] | Sequence[Message]
LEAST_PRIORITY, MOST_PRIORITY = 0.01, 100.0


NO_HIDDEN = "the compiled forward of this model gives no hidden states, so no embeddings; use model.compile=off"


class ContextExceeded(ValueError):
    """A prompt, or it and the tokens that it asks for, do not fit the model's context or the memory.

    context: tokens that fit; None if the memory is what lacks. prompt_tokens: tokens of the prompt. wanted: the new
    tokens that were asked for; None if that was left open.
    """

    def __init__(self, message: str, prompt_tokens: int, wanted: int | None, context: int | None):
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.wanted = wanted
        self.context = context


class RequestBuilder:
    """Makes requests for one checkpoint. Every refusal is a ValueError whose message is meant for the user."""

    def __init__(
        self,
        checkpoint: CheckpointInfo,
        decode: DecodingMethod | None = None,
        sampling: Sampling | None = None,
        limits: DecodeLimits | None = None,
        roles: Collection[str] = (),
    ):
        """decode, sampling: settings for requests that leave them open; None is auto and the checkpoint's defaults.
        limits: the most that a request may ask for. roles: of the second models. Raises ValueError for
        settings out of range.
        """
        self.checkpoint = checkpoint
        self._vocab_size = checkpoint.vocab_size
        self.limits = limits or DecodeLimits()
        # For keys and values; set once it is known how much there is.
        self.budget = KVBudget()
        self.decode = self._without_trees(decode or DEFAULT())
        self.sampling = (sampling or Sampling()).with_defaults(checkpoint.generation)
        # Whether the model's forward gives hidden states. Where the model is not loaded, its engines refuse requests.
        self.embeds = True
        self._numbers = itertools.count()
        self._traits = ModelTraits.of(checkpoint, roles)
        self._check_method(self.decode)
        self.sampling.check(self._vocab_size)

    def encode(self, prompt: Prompt, rendering: Rendering | None = None, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt: a text gets the tokenizer's special tokens, messages the chat template's.

        rendering: of messages. add_special_tokens: False leaves a text without special tokens. Raises ValueError for an
        empty prompt, an unknown token id and text that is not valid Unicode; for messages as
        lp.text.chat_template.encode does.
        """
        tokens: list[Any]
        if not isinstance(prompt, Sequence):
            raise ValueError(f"the prompt is {prompt!r}; give a text, a list of token ids, or messages")
        if isinstance(prompt, str):
            tokens = self.checkpoint.tokenizer.encode(_utf8(prompt), add_special_tokens=add_special_tokens)
        elif _is_conversation(prompt):
            tokens = chat_template.encode(self.checkpoint.tokenizer, prompt, rendering)
        else:
            tokens = list(prompt)
        if not prompt or not tokens:
            raise ValueError("the prompt is empty; give at least one character or token id")
        largest = self._vocab_size - 1
        for token in tokens:
            if type(token) is not int or not 0 <= token <= largest:
                raise ValueError(f"the prompt holds token id {token!r}; ids are integers from 0 to {largest}")
        return tokens

    def build(
        self,
        prompt: Prompt,
        decode: DecodingMethod | None = None,
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
        request_id: str | None = None,
        owner: str | None = None,
        priority: float = 1.0,
        grammar: Grammar | None = None,
        trace: bool = False,
    ) -> Request:
        """A complete request. Raises ValueError for a prompt that cannot be used and for settings out of range, and
        GrammarError for a grammar that cannot be compiled.

        request_id: None numbers the requests. owner, priority, grammar, trace: see Request.
        """
        if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
            raise ValueError(f"priority={priority:g} must be from {LEAST_PRIORITY:g} to {MOST_PRIORITY:g}")
        tokens = self.encode(prompt)
        if not isinstance(decode, DecodingMethod | None):
            raise ValueError(f"decode={decode!r} is no method; give an object such as lp.Lookahead()")
        decode = self._without_trees(decode or self.decode)
        self._check_method(decode)
        stopping = stopping or Stopping()
        is_scored = sampling is not None and sampling.prompt_logprobs is not None
        stopping.check(self._vocab_size, least_tokens=0 if is_scored else 1)
        stopping = self._fit(tokens, stopping, decode, grammar is not None)
        sampling = self._complete(sampling, stopping)
        request = Request("", tokens, decode, sampling, stopping, owner, priority, grammar, trace)
        decode.check_request(request)
        request.id = request_id or f"request-{next(self._numbers)}"
        if grammar is not None:
            grammar.check()
            self.checkpoint.grammars.compile(grammar)
        return request

    def build_embedding(
        self, prompt: str | list[int], pooling: Pooling, request_id: str | None = None, owner: str | None = None
    ) -> Request:
        """A request for the embedding of a prompt. Raises ValueError for a prompt that cannot be used, and where the
        model's forward gives no hidden states.
        """
        if self.checkpoint.plain:
            raise ValueError(f"embeddings need token trees, and {self.checkpoint.plain}")
        if not self.embeds:
            raise ValueError(NO_HIDDEN)
        sampling, decode = Sampling(temperature=0.0, seed=0), Autoregressive()
        request = self.build(prompt, decode, sampling, Stopping(max_new_tokens=1), request_id, owner)
        request.pooling = pooling
        return request

    def _check_method(self, decode: DecodingMethod) -> None:
        """Raises ValueError for a method that is out of range, or that this checkpoint cannot have."""
        decode.check(self.limits)
        decode.check_model(self._traits)

    def _without_trees(self, decode: DecodingMethod) -> DecodingMethod:
        """The method, or what gives the same text where the model cannot answer token trees.

        Raises ValueError for a method whose text needs them.
        """
        if not self.checkpoint.plain:
            return decode
        if (plain := decode.without_trees(Autoregressive())) is None:
            raise ValueError(
                f"decode={decode.method} needs token trees, and {self.checkpoint.plain}; use decode=autoregressive"
            )
        return plain

    def find_streamed_methods(self) -> list[str]:
        """The methods whose texts grow step by step, and that requests can have here with their default settings."""
        found = []
        for name, kind in METHODS.items():
            if kind.tells_steps and (kind is Autoregressive or not self.checkpoint.plain):
                with suppress(ValueError):
                    self._check_method(kind())
                    found.append(name)
        return found

    def _complete(self, sampling: Sampling | None, stopping: Stopping) -> Sampling:
        """The caller's sampling settings, with the builder's defaults for those left open, and with a seed."""
        most, least = stopping.max_new_tokens or 0, (sampling.min_new_tokens or 0) if sampling else 0
        if least > most:
            raise ValueError(f"min_new_tokens={least} is more than max_new_tokens={most}")
        if sampling is None:
            complete = copy.deepcopy(self.sampling)
        else:
            nothing = Sampling()
            names = [field.name for field in dataclasses.fields(Sampling)]
            left_open = [name for name in names if getattr(sampling, name) == getattr(nothing, name)]
            complete = dataclasses.replace(sampling, **{name: getattr(self.sampling, name) for name in left_open})
        if complete.seed is None:
            complete.seed = secrets.randbits(32)
        complete.min_new_tokens = min(complete.min_new_tokens or 0, most)
        complete.check(self._vocab_size)
        return complete

    def _fit(self, tokens: list[int], stopping: Stopping, decode: DecodingMethod, has_grammar: bool) -> Stopping:
        """Checks that prompt and new tokens fit the context and the memory for keys and values; max_new_tokens None
        becomes all the room there is.

        Raises ContextExceeded if they do not.
        """
        context = self.checkpoint.max_length
        room, wanted = context - len(tokens), stopping.max_new_tokens
        if room < 1:
            raise ContextExceeded(
                f"the prompt has {len(tokens)} tokens, which leaves no room in the model's context of {context} "
                "tokens; shorten the prompt",
                len(tokens),
                wanted,
                context,
            )
        if wanted is not None and wanted > room:
            raise ContextExceeded(
                f"a prompt of {len(tokens)} tokens and max_new_tokens={wanted} do not fit the model's context of "
                f"{context} tokens; ask for at most {room} new tokens",
                len(tokens),
                wanted,
                context,
            )
        if wanted is None:
            wanted = max(1, min(room, self.budget.most_new_tokens(len(tokens), decode, has_grammar)))
        try:
            self.budget.check(len(tokens), wanted, decode, has_grammar)
        except RequestTooLarge as error:
            raise ContextExceeded(str(error), len(tokens), stopping.max_new_tokens, None) from None
        return dataclasses.replace(stopping, max_new_tokens=wanted)


def _is_conversation(prompt: Sequence[Any]) -> bool:
    """Whether a prompt that is no text is messages rather than token ids."""
    return bool(prompt) and isinstance(prompt[0], Mapping)


def _utf8(text: str) -> str:
    """The text itself. Raises ValueError if it cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt is not valid Unicode: character {error.start} is a lone surrogate") from None
    return text
