"""The settings of the methods around another one, and what they cannot have beside them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from lp.sampling.contrast import Contrast
from lp.sampling.settings import Sampling


@dataclass
class Contrastive:
    """Contrastive decoding (Li et al., arXiv 2210.15097): tokens that the model finds likelier than an amateur does.

    The text is not the model's greedy one: exact means that it is that of plain contrastive decoding. It is not
    contrastive search (Su et al., arXiv 2202.06417). The amateur is the model of `second.path`, or else the model
    itself at a higher temperature.

    inner: the method that drafts, with its default settings: auto, autoregressive, jacobi, prompt_lookup or lookahead.
    alpha: tokens less likely than alpha times the best one's probability are left out. weight: of the amateur's
    log-probability, which is subtracted; 1 is the paper's score, 1/3 ranks tokens as arXiv 2309.09117 does with
    beta=0.5. amateur_temperature: what the amateur's logits are divided by.
    """

    method: ClassVar[str] = "contrastive"
    inner: str = "auto"
    alpha: float = 0.1
    weight: float = 1.0
    amateur_temperature: float = 1.0


@dataclass
class BestOf:
    """Samples several texts and returns the one whose tokens have the highest mean log-probability, at the end.

    The text is not the model's greedy one: exact means that the texts are those of as many plain samplings, with the
    seeds that `n` has for its choices. It needs a temperature.

    inner: the method that drafts, with its default settings: auto, autoregressive, jacobi, prompt_lookup or lookahead.
    num_samples: texts that are sampled. num_return_sequences: those that are returned, best first. ranked_by: "model",
    or "second" for the log-probabilities of the model of `second.path`.
    """

    method: ClassVar[str] = "best_of"
    inner: str = "auto"
    num_samples: int = 4
    num_return_sequences: int = 1
    ranked_by: str = "model"


# Whose log-probabilities rank texts.
RANKED_BY = ("model", "second")


def contrast_of(settings: Contrastive, has_second: bool) -> Contrast:
    """What contrastive decoding asks of the answers. has_second: see Contrast."""
    return Contrast(settings.alpha, settings.weight, settings.amateur_temperature, has_second)


def check(settings: Contrastive | BestOf, inner: Collection[str]) -> None:
    """Raises ValueError naming the first value that is out of range. inner: the methods that may be inside."""
    if settings.inner not in inner:
        raise ValueError(
            f"decode.inner={settings.inner} is not for decode={settings.method}: it is one of {', '.join(inner)}"
        )
    if isinstance(settings, BestOf):
        _check_best_of(settings)
        return
    for name, (smallest, largest) in {
        "alpha": (0.0, 1.0),
        "weight": (0.0, 10.0),
        "amateur_temperature": (0.01, 100.0),
    }.items():
        if not smallest <= (value := getattr(settings, name)) <= largest:
            raise ValueError(f"decode.{name}={value} is out of range: it must be from {smallest} to {largest}")


def _check_best_of(settings: BestOf) -> None:
    if settings.num_return_sequences > settings.num_samples:
        raise ValueError(
            f"decode.num_return_sequences={settings.num_return_sequences} is more than "
            f"decode.num_samples={settings.num_samples}"
        )
    if settings.ranked_by not in RANKED_BY:
        raise ValueError(f"decode.ranked_by={settings.ranked_by} must be one of {', '.join(RANKED_BY)}")


def check_beside_best_of(settings: BestOf, sampling: Sampling, trace: bool) -> None:
    """Raises ValueError for the first setting of a request that decode=best_of does not take."""
    if not sampling.temperature:
        raise ValueError(
            "temperature=0 is not for decode=best_of, as all samples would be the same; set a temperature above 0"
        )
    if sampling.logprobs is not None and settings.ranked_by == "second":
        raise ValueError("logprobs is not for decode.ranked_by=second, whose are not the model's; leave it out")
    if sampling.prompt_logprobs is not None:
        raise ValueError("prompt_logprobs is not for decode=best_of, which tells of its texts alone; leave it out")
    if trace:
        raise ValueError(
            f"a trace is not for decode=best_of, whose steps are those of many texts; trace decode={settings.inner}"
        )


def check_second(settings: object, has_second: bool) -> None:
    """Raises ValueError for settings that need a second model where there is none."""
    if has_second:
        return
    if isinstance(settings, Contrastive) and settings.amateur_temperature <= max(1.0, settings.weight):
        raise ValueError(
            "decode=contrastive needs an amateur: a second model with the same vocabulary (second.path=, or "
            "second.layers= for the model's first layers), or the model itself at a higher temperature "
            f"(decode.amateur_temperature above 1 and decode.weight, not {settings.amateur_temperature})"
        )
    if isinstance(settings, BestOf) and settings.ranked_by == "second":
        raise ValueError("decode.ranked_by=second needs a second model with the same vocabulary (second.path=)")
