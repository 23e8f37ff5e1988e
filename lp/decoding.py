"""The decoding methods and the one loop body they share: plan a token tree, commit the targets.

A method is what it hangs under the root: nothing (autoregressive), a chain of Jacobi guesses (jacobi), n-grams found
in the text so far (prompt_lookup), or those, the window's n-grams and the window itself (lookahead).
Knows nothing of models, devices or ranks.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lp.drafts import merge
from lp.ngrams import NGramPool
from lp.tree import TokenTree, TreeBuilder
from lp.verification import NOT_A_TOKEN, Accepted, verify
from lp.window import Window


@dataclass
class Autoregressive:
    """One token a step: the baseline."""

    method: ClassVar[str] = "autoregressive"


@dataclass
class Jacobi:
    """Plain Jacobi decoding (arXiv 2402.02057, section 2): a chain of guesses, each step improved and slid.

    window: number of guesses.
    """

    method: ClassVar[str] = "jacobi"
    window: int = 8


@dataclass
class PromptLookup:
    """Drafts from the prompt and the generated text alone: the ablation of arXiv 2402.02057, table 3.

    ngram: N, tokens of an n-gram. guesses: G, n-grams verified a step. prompt_drafts, generated_drafts: the texts that
    feed the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept that begin with one token.
    """

    method: ClassVar[str] = "prompt_lookup"
    ngram: int = 5
    guesses: int = 7
    prompt_drafts: bool = True
    generated_drafts: bool = True
    pool_size: int = 65_536
    pool_per_token: int = 64


@dataclass
class Lookahead:
    """Lookahead decoding (arXiv 2402.02057, section 3).

    window: W, columns. ngram: N, the window has N-1 levels. guesses: G, n-grams verified a step. *_drafts: what feeds
    the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept that begin with one token.
    """

    method: ClassVar[str] = "lookahead"
    window: int = 7
    ngram: int = 5
    guesses: int = 7
    window_drafts: bool = True
    prompt_drafts: bool = True
    generated_drafts: bool = True
    pool_size: int = 65_536
    pool_per_token: int = 64


DecodeSettings = Autoregressive | Jacobi | PromptLookup | Lookahead
METHODS: dict[str, type[DecodeSettings]] = {
    kind.method: kind for kind in (Autoregressive, Jacobi, PromptLookup, Lookahead)
}


@dataclass
class DecodeLimits:
    """The most that a request may ask for. One request's rows a step are bounded by W(N-1) + G(N-1) + 1."""

    window: int = 128
    ngram: int = 32
    guesses: int = 256
    pool_size: int = 1_000_000
    pool_per_token: int = 1024
    rows: int = 4096


SMALLEST = {"window": 1, "ngram": 2, "guesses": 1, "pool_size": 1, "pool_per_token": 1}


def to_dict(settings: DecodeSettings) -> dict[str, Any]:
    return {"method": settings.method, **dataclasses.asdict(settings)}


def from_dict(values: dict[str, Any], defaults: DecodeSettings | None = None) -> DecodeSettings:
    """Settings from plain values; what is left out comes from `defaults` if they are of the same method.

    Raises ValueError for an unknown method, an unknown key or a value of the wrong type.
    """
    method = values.get("method", defaults.method if defaults else Lookahead.method)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"decode method {method!r} is unknown; it is one of {', '.join(METHODS)}")
    kind = METHODS[method]
    base = defaults if isinstance(defaults, kind) else kind()
    given = {key: value for key, value in values.items() if key != "method"}
    for key, value in given.items():
        if key not in (names := [field.name for field in dataclasses.fields(kind)]):
            raise ValueError(f"decode.{key} is not a setting of {method}; it has {', '.join(names) or 'none'}")
        if type(value) is not type(getattr(base, key)):
            raise ValueError(f"decode.{key} must be {type(getattr(base, key)).__name__}, not {value!r}")
    return dataclasses.replace(base, **given)


def check(settings: DecodeSettings, limits: DecodeLimits) -> None:
    """Raises ValueError naming the first value that is out of range."""
    values = dataclasses.asdict(settings)
    for key, smallest in SMALLEST.items():
        if key in values and not smallest <= values[key] <= getattr(limits, key):
            raise ValueError(
                f"decode.{key}={values[key]} is out of range for {settings.method}: "
                f"it must be from {smallest} to {getattr(limits, key)}"
            )
    levels = values.get("ngram", 2) - 1
    rows = (values.get("window", 0) + values.get("guesses", 0)) * levels + 1
    if rows > limits.rows:
        raise ValueError(
            f"decode settings ask for up to {rows} rows a step, more than the limit of {limits.rows}; "
            "use a smaller window, ngram or guesses"
        )


@dataclass
class Drafted:
    """Draft tokens of one step by the source they came from.

    accepted: the source of each accepted token but the bonus token, in order.
    """

    proposed: Counter[str]
    accepted: list[str]


class Decoder(Protocol):
    """Plans trees for one sequence and learns from what the model answers."""

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        """The next tree under the root tokens[-1].

        room: positions that the model has after the root's. wanted: tokens that may still be emitted; the last of them
        needs no draft.
        """
        ...

    def commit(self, tokens: Sequence[int], targets: np.ndarray) -> tuple[Accepted, Drafted]:
        """Verifies the tree planned last by its targets [R]; `tokens` are still those it was planned for."""
        ...

    def fingerprint(self) -> int:
        """A checksum (31 bits) of all state: equal on all ranks of lookahead parallelism."""
        ...


def make_decoder(settings: DecodeSettings, prompt: Sequence[int], seed: int) -> Decoder:
    """seed: of the tokens that fill window cells and Jacobi guesses that have no guess yet."""
    match settings:
        case Autoregressive():
            return LookaheadDecoder(None, None, 0)
        case Jacobi():
            return JacobiDecoder(settings, prompt, seed)
        case PromptLookup():
            return LookaheadDecoder(None, PoolFeed(settings, prompt, windowed=False), settings.guesses)
        case Lookahead():
            window = Window(settings.window, settings.ngram - 1, prompt, seed)
            feed = PoolFeed(settings, prompt, windowed=settings.window_drafts)
            return LookaheadDecoder(window, feed, settings.guesses)


def _guesses(targets: np.ndarray) -> np.ndarray:
    """Targets as guesses for later steps, where any token will do in place of none."""
    return np.where(targets == NOT_A_TOKEN, 0, targets)


class PoolFeed:
    """An n-gram pool and the texts that feed it."""

    def __init__(self, settings: PromptLookup | Lookahead, prompt: Sequence[int], windowed: bool):
        self.pool = NGramPool(settings.ngram, settings.pool_size, settings.pool_per_token)
        self.windowed = windowed
        self.generated = settings.generated_drafts
        self.start = 0 if settings.prompt_drafts else len(prompt)
        if settings.prompt_drafts:
            self.pool.add_text(prompt, "prompt")

    def learn(self, ngrams: list[tuple[int, ...]], tokens: Sequence[int], accepted: list[int]) -> None:
        """Takes the window's n-grams, and those of the text that end in an accepted token."""
        if self.windowed:
            for ngram in ngrams:
                self.pool.add(ngram, "window")
        if self.generated:
            before = max(self.start, len(tokens) - (self.pool.ngram - 1))
            self.pool.add_text([*tokens[before:], *accepted], "generated")


class LookaheadDecoder:
    """A window or none, a pool or none: autoregressive, prompt_lookup and lookahead."""

    def __init__(self, window: Window | None, feed: PoolFeed | None, guesses: int):
        self.window = window
        self.feed = feed
        self.guesses = guesses
        self.sources: dict[int, str] = {}
        self.tree: TokenTree

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        self.sources = {}
        if self.feed:
            self.sources = merge(builder, self.feed.pool.lookup(tokens[-1], self.guesses), min(room, wanted - 1))
        if self.window and self.window.depth > room:
            self.window = None  # it would stand beyond the model's last position, and room only shrinks
        if self.window:
            self.window.plan(builder)
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], targets: np.ndarray) -> tuple[Accepted, Drafted]:
        accepted = verify(self.tree, targets)
        ngrams = self.window.commit(_guesses(targets), len(accepted.tokens)) if self.window else []
        if self.feed:
            self.feed.learn(ngrams, tokens, accepted.tokens)
        return accepted, self._drafted(accepted)

    def _drafted(self, accepted: Accepted) -> Drafted:
        """A window cell counts as a draft when it was accepted and no draft of the same path was there."""
        proposed, right = Counter(self.sources.values()), list[str]()
        for rows in accepted.drafted:
            source = next((self.sources[row] for row in rows if row in self.sources), None)
            right.append(source or "window")
            if source is None:
                proposed["window"] += 1
        return Drafted(proposed, right)

    def fingerprint(self) -> int:
        window = self.window.cells if self.window else []
        pool = list(self.feed.pool.items()) if self.feed else []
        return zlib.crc32(repr((window, pool)).encode()) >> 1


class JacobiDecoder:
    """A chain of guesses under the root; every step replaces each guess by the model's answer to the one before."""

    def __init__(self, settings: Jacobi, prompt: Sequence[int], seed: int):
        self.random = random.Random(seed)
        self.source = list(prompt)
        self.size = settings.window
        self.guesses = self._fresh(self.size)
        self.tree: TokenTree

    def _fresh(self, count: int) -> list[int]:
        return self.random.choices(self.source, k=count)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        row = 0
        for guess in self.guesses[: min(room, wanted - 1)]:
            row = builder.add(guess, row)
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], targets: np.ndarray) -> tuple[Accepted, Drafted]:
        accepted = verify(self.tree, targets)
        improved = _guesses(targets)[len(accepted.tokens) :].tolist()
        self.guesses = improved + self._fresh(self.size - len(improved))
        return accepted, Drafted(Counter(jacobi=len(self.tree) - 1), ["jacobi"] * len(accepted.drafted))

    def fingerprint(self) -> int:
        return zlib.crc32(repr(self.guesses).encode()) >> 1
