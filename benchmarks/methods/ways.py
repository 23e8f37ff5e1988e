"""How each decoding method is run to be compared with the others: the one table to add a new method to.

Knows nothing of prompts, rounds or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.shared.decoded_texts import GENERATE
from lp.methods.registry import METHODS, from_dict
from lp.model.quantization.quantize import Weights
from lp.model.second_model import SecondModel
from lp.request import DecodingMethod


def second_model(path: str) -> SecondModel:
    """The checkpoint at a path. int4 and int8: the model itself in so many bits. A number: so many of its layers."""
    if path in (Weights.int4, Weights.int8):
        return SecondModel(weights=Weights(path))
    return SecondModel(layers=int(path)) if path.isdecimal() else SecondModel(path)


# Parts beside the checkpoint that a way may need, by their keyword of Engine.from_pretrained: what makes the keyword's
# value of a path.
PARTS: dict[str, Callable[[str], Any]] = {"index": str, "heads": str, "draft": second_model, "second": second_model}
# The ways of transformers' `generate` whose texts ours must equal, by their names in tables, with their keywords.
BEAMS, BEST_FIRST = f"{GENERATE}, 4 beams", f"{GENERATE}, 4 beams, plain sums"
REFERENCES: dict[str, dict[str, Any]] = {
    GENERATE: {},
    BEAMS: {"num_beams": 4},
    BEST_FIRST: {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"},
}


@dataclass(frozen=True)
class Way:
    """One way to run a method.

    label: its name in tables, after the method's. settings: those that are not the method's defaults. temperature: 0
    is greedy. reference: the way of `generate`, or our own plain way of the same method ("METHOD, LABEL"), whose text
    it gives in float32; None if there is none, and `why_none` says why. needs: of PARTS.
    """

    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    reference: str | None = GENERATE
    why_none: str = ""
    needs: str = ""

    def decode(self, method: str) -> DecodingMethod:
        return from_dict({"method": method, **self.settings})

    def reason_not_to_run(self, parts: Collection[str]) -> str:
        """Empty if it can be run with these parts."""
        return f"needs {self.needs}: give --part {self.needs}=PATH" if self.needs and self.needs not in parts else ""


PAPER = {"window": 15, "ngram": 5, "guesses": 15}
WAYS: dict[str, list[Way]] = {
    "autoregressive": [Way()],
    "jacobi": [Way(), Way("window=auto", {"window": "auto"})],
    "prompt_lookup": [Way()],
    "lookahead": [Way(), Way("(15, 5, 15)", PAPER)],
    "auto": [
        Way(settings={"index_drafts": False, "model_drafts": False}),
        Way("index", {"model_drafts": False}, needs="index"),
        Way("second model", {"index_drafts": False}, needs="draft"),
    ],
    "draft_model": [Way(needs="draft")],
    "medusa": [Way(needs="heads")],
    "beam": [
        Way(reference=BEAMS),
        Way(
            "best_first",
            {"best_first": True, "length_penalty": 0.0, "early_stopping": "never"},
            reference=BEST_FIRST,
        ),
    ],
    "contrastive": [
        Way("plain", {"inner": "autoregressive"}, needs="second", reference=None, why_none="not the model's own text"),
        Way(needs="second", reference="contrastive, plain"),
    ],
    "best_of": [
        Way("plain", {"inner": "autoregressive"}, temperature=0.8, reference=None, why_none="sampled"),
        Way(temperature=0.8, reference="best_of, plain"),
    ],
}


@dataclass(frozen=True)
class Chosen:
    """What is run, and what is not. ways: by name. skipped: the reasons, by name."""

    ways: dict[str, tuple[DecodingMethod, Way]]
    skipped: dict[str, str]

    @property
    def references(self) -> list[str]:
        """The ways of `generate` that are needed, plain `generate` first."""
        wanted = {GENERATE, *(way.reference for _, way in self.ways.values())}
        return [name for name in REFERENCES if name in wanted]


def choose(methods: Collection[str], parts: Collection[str]) -> Chosen:
    """The ways of the given methods, in the order of METHODS; plain decoding is always among them, and first.

    Raises ValueError for a method that does not exist.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ValueError(f"--methods {unknown[0]} is unknown; the methods are {', '.join(METHODS)}")
    ways: dict[str, tuple[DecodingMethod, Way]] = {}
    skipped: dict[str, str] = {}
    for method in sorted(METHODS, key="autoregressive".__ne__):
        if method not in methods and method != "autoregressive":
            continue
        if method not in WAYS:
            skipped[method] = "benchmarks/methods/ways.py does not say how it is run"
        for way in WAYS.get(method, []):
            name = ", ".join(filter(None, [method, way.label]))
            if reason := way.reason_not_to_run(parts):
                skipped[name] = reason
            else:
                ways[name] = (way.decode(method), way)
    return Chosen(ways, skipped)
