"""The settings of the decoding methods, as a user, a configuration file or a request gives them.

Knows nothing of how the methods work.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, get_args, get_type_hints

from lp.decoding.beams.settings import Beam
from lp.decoding.by_model.settings import REJECTION, DraftModel
from lp.decoding.medusa.settings import Medusa
from lp.nested.settings import BestOf, Contrastive
from lp.nested.settings import check as check_nested

# Where a number is expected: as many as pay off.
AUTO = "auto"
# The most guesses of Jacobi decoding with a window of "auto".
LONGEST_CHAIN = 32
# Tokens by which the beams of a search differ at most, in most steps: what room is kept for.
LIKELY_DIVERGENCE = 16
# The most rows of a step that a grammar adds: tokens that must follow.
MOST_FORCED = 48


@dataclass
class Autoregressive:
    """Plain decoding, one token per step: the baseline."""

    method: ClassVar[str] = "autoregressive"


@dataclass
class Jacobi:
    """Plain Jacobi decoding (arXiv 2402.02057, section 2): each step improves a chain of guesses and moves it on.

    window: number of guesses; "auto" tries out how many pay off on this machine, up to LONGEST_CHAIN.
    """

    method: ClassVar[str] = "jacobi"
    window: int | str = 8


@dataclass
class PromptLookup:
    """Drafts from the prompt and the generated text alone: the ablation of arXiv 2402.02057, table 3.

    ngram: N, tokens of an n-gram. guesses: G, n-grams verified per step. prompt_drafts, generated_drafts: whether the
    prompt's and the output's n-grams go into the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept
    that begin with the same token.
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

    window: W, columns of the window. ngram: N, tokens of an n-gram; the window has N-1 levels. guesses: G, n-grams
    verified per step. window_drafts, prompt_drafts, generated_drafts: whether the n-grams of the window, the prompt and
    the output go into the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept that begin with the same
    token. position_noise: when sampling, window cells are drawn with the noise of their positions; False takes their
    likeliest tokens, as the paper does.
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
    position_noise: bool = True


@dataclass
class Auto:
    """Drafts from all sources in one tree beside a lookahead window. Both are as large as pays off on this machine.

    window_drafts: use the window's n-grams. suffix_drafts: use the continuation of the longest match in prompt and
    output. recycled_drafts: use the best tokens that the model gave after the same token before. shared_drafts: use
    texts and answers of earlier requests of the same owner (a server's API key). index_drafts: use the model's answers
    that launch/index.py has collected in a file. corpus_drafts: use what followed the same last tokens in the texts of
    the engine's setting `corpus`. model_drafts: use what the second model of the engine's setting `draft` proposes, if
    there is one. max_rows: the most rows of a step. rows: use this many rows whatever they cost; 0 takes as many as pay
    off. max_window: W, the most columns of the window. ngram: N, tokens of the
    window's n-grams. candidates: the best tokens kept from each row's answer.
    """

    method: ClassVar[str] = "auto"
    window_drafts: bool = True
    suffix_drafts: bool = True
    recycled_drafts: bool = True
    shared_drafts: bool = False
    index_drafts: bool = True
    corpus_drafts: bool = True
    model_drafts: bool = True
    max_rows: int = 128
    rows: int = 0
    max_window: int = 15
    ngram: int = 5
    candidates: int = 8


DecodeSettings = (
    Auto | Autoregressive | Jacobi | PromptLookup | Lookahead | DraftModel | Medusa | Beam | Contrastive | BestOf
)
METHODS: dict[str, type[DecodeSettings]] = {kind.method: kind for kind in get_args(DecodeSettings)}
# Those that methods around another one may hold.
INNER = tuple(kind.method for kind in (Auto, Autoregressive, Jacobi, PromptLookup, Lookahead))


@dataclass
class DecodeLimits:
    """The most that a request may ask for.

    window: columns of a window. ngram: tokens of an n-gram. guesses: n-grams verified per step. pool_size: n-grams kept
    in all. pool_per_token: n-grams kept that begin with the same token. candidates: best tokens kept from an answer.
    rows: rows of a step; also bounds (W + G)(N - 1) + 1, the rows that a step of lookahead, Jacobi or prompt lookup can
    need. num_beams: beams of a search, or samples of decode=best_of. depth: drafts of a second model that follow one
    another.
    """

    window: int = 128
    ngram: int = 32
    guesses: int = 256
    pool_size: int = 1_000_000
    pool_per_token: int = 1024
    candidates: int = 64
    rows: int = 4096
    num_beams: int = 32
    depth: int = 64


# For each setting, its lowest value and the name of the limit for its highest.
BOUNDS = {
    "window": (1, "window"),
    "max_window": (0, "window"),
    "ngram": (2, "ngram"),
    "guesses": (1, "guesses"),
    "pool_size": (1, "pool_size"),
    "pool_per_token": (1, "pool_per_token"),
    "candidates": (1, "candidates"),
    "depth": (1, "depth"),
    "max_rows": (1, "rows"),
    "rows": (0, "rows"),
    "num_beams": (1, "num_beams"),
    "num_samples": (1, "num_beams"),
    "num_return_sequences": (1, "num_beams"),
}


def to_dict(settings: DecodeSettings) -> dict[str, Any]:
    """JSON values of the settings, with the method's name, for `from_dict`."""
    return {"method": settings.method, **dataclasses.asdict(settings)}


def from_dict(values: dict[str, Any], defaults: DecodeSettings | None = None) -> DecodeSettings:
    """Makes settings from JSON values; those left out come from `defaults` if that has the same method.

    Raises ValueError for an unknown method, an unknown key or a value of the wrong type.
    """
    method = values.get("method", defaults.method if defaults else Auto.method)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"decode method {method!r} is unknown; it is one of {', '.join(METHODS)}")
    kind = METHODS[method]
    base = defaults if isinstance(defaults, kind) else kind()
    given = {key: value for key, value in values.items() if key != "method"}
    for key, value in given.items():
        if key not in (names := [field.name for field in dataclasses.fields(kind)]):
            raise ValueError(f"decode.{key} is not a setting of {method}; it has {', '.join(names) or 'none'}")
        if not _fits(value, hint := get_type_hints(kind)[key]):
            raise ValueError(f"decode.{key} must be {getattr(hint, '__name__', hint)}, not {value!r}")
    return dataclasses.replace(base, **given)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type. True and False are no numbers."""
    return type(value) in (get_args(hint) or (hint,)) or (hint is float and type(value) is int)


def inner_of(settings: DecodeSettings) -> DecodeSettings:
    """The method that drafts: the one inside a method around it, with its default settings, or the method itself."""
    return METHODS[settings.inner]() if isinstance(settings, Contrastive | BestOf) else settings


def lossy_name(settings: DecodeSettings) -> str:
    """What makes the text another than the model's own, such as "typical"; empty if nothing does."""
    return settings.verify if isinstance(settings, Medusa) and settings.is_lossy else ""


def chooses_rows(settings: DecodeSettings) -> bool:
    """Whether the method chooses by step times how many rows a step has."""
    settings = inner_of(settings)
    if isinstance(settings, DraftModel):
        return not settings.rows and settings.verify != REJECTION
    return not settings.rows if isinstance(settings, Auto) else isinstance(settings, Jacobi) and settings.window == AUTO


def least_rows(settings: DecodeSettings) -> int:
    """The rows that a step has however little they are worth: drafts of `auto`, of a second model and of heads are left
    out if others need the rows.
    """
    settings = inner_of(settings)
    if isinstance(settings, DraftModel) and settings.verify == REJECTION:
        return settings.depth + 1
    if isinstance(settings, Medusa):
        return 1
    return max(1, settings.rows) if isinstance(settings, Auto | DraftModel) else most_rows(settings)


def most_rows(settings: DecodeSettings, has_grammar: bool = False) -> int:
    """The most rows that a step can have. has_grammar: whether the text must keep a grammar, which adds drafts."""
    settings = inner_of(settings)
    if isinstance(settings, Autoregressive):
        return 1
    if isinstance(settings, Beam):
        return settings.num_beams * LIKELY_DIVERGENCE
    added = MOST_FORCED if has_grammar else 0
    if isinstance(settings, DraftModel) and settings.verify == REJECTION:
        return settings.depth + 1
    if isinstance(settings, Auto | DraftModel):
        return max(settings.max_rows, settings.rows) + added
    if isinstance(settings, Medusa):
        return settings.max_rows + added
    values = dataclasses.asdict(settings)
    if values.get("window") == AUTO:
        return LONGEST_CHAIN + 1 + added
    return (values.get("window", 0) + values.get("guesses", 0)) * (values.get("ngram", 2) - 1) + 1 + added


def check(settings: DecodeSettings, limits: DecodeLimits) -> None:
    """Raises ValueError naming the first value that is out of range."""
    values = dataclasses.asdict(settings)
    if isinstance(window := values.get("window"), str) and window != AUTO:
        raise ValueError(f"decode.window={window} must be a number of guesses, or auto")
    for key, (smallest, limit) in BOUNDS.items():
        largest = getattr(limits, limit)
        if type(values.get(key)) is int and not smallest <= values[key] <= largest:
            raise ValueError(
                f"decode.{key}={values[key]} is out of range for {settings.method}: "
                f"it must be from {smallest} to {largest}"
            )
    if isinstance(settings, Beam | DraftModel | Medusa):
        settings.check()
    if isinstance(settings, Contrastive | BestOf):
        check_nested(settings, INNER)
        settings = inner_of(settings)
    if not isinstance(settings, Auto | DraftModel) and (rows := most_rows(settings)) > limits.rows:
        raise ValueError(
            f"decode settings ask for up to {rows} rows a step, more than the limit of {limits.rows}; "
            "use a smaller window, ngram or guesses"
        )
