"""The settings of every method and the Python API, as users know them: a rewrite must not change them unnoticed."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from typing import Any

import pytest

import lp
from launch.config.reference import settings_of

EXPORTED = [
    "Auto",
    "Autoregressive",
    "Beam",
    "BestOf",
    "Completion",
    "Contrastive",
    "DecodeLimits",
    "DraftModel",
    "Engine",
    "Grammar",
    "Jacobi",
    "Lookahead",
    "Medusa",
    "Output",
    "PromptLookup",
    "Sampling",
    "SecondModel",
    "StepTrace",
    "Stopping",
    "generate",
]
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": (
        "Auto",
        {
            "window_drafts": True,
            "suffix_drafts": True,
            "recycled_drafts": True,
            "shared_drafts": False,
            "index_drafts": True,
            "corpus_drafts": True,
            "model_drafts": True,
            "max_rows": 128,
            "rows": 0,
            "max_window": 15,
            "ngram": 5,
            "candidates": 8,
        },
    ),
    "autoregressive": ("Autoregressive", {}),
    "beam": (
        "Beam",
        {
            "num_beams": 4,
            "length_penalty": 1.0,
            "early_stopping": "false",
            "num_return_sequences": 1,
            "best_first": False,
        },
    ),
    "best_of": ("BestOf", {"inner": "auto", "num_samples": 4, "num_return_sequences": 1, "ranked_by": "model"}),
    "contrastive": ("Contrastive", {"inner": "auto", "alpha": 0.1, "weight": 1.0, "amateur_temperature": 1.0}),
    "draft_model": ("DraftModel", {"depth": 8, "max_rows": 32, "rows": 0, "verify": "exact"}),
    "jacobi": ("Jacobi", {"window": 8}),
    "lookahead": (
        "Lookahead",
        {
            "window": 7,
            "ngram": 5,
            "guesses": 7,
            "window_drafts": True,
            "prompt_drafts": True,
            "generated_drafts": True,
            "pool_size": 65536,
            "pool_per_token": 64,
            "position_noise": True,
        },
    ),
    "medusa": (
        "Medusa",
        {"max_rows": 16, "candidates": 6, "verify": "exact", "exact": True, "epsilon": 0.09, "delta": 0.3},
    ),
    "prompt_lookup": (
        "PromptLookup",
        {
            "ngram": 5,
            "guesses": 7,
            "prompt_drafts": True,
            "generated_drafts": True,
            "pool_size": 65536,
            "pool_per_token": 64,
        },
    ),
}
PARAMETERS = {
    "from_pretrained": [
        "path",
        "dtype",
        "device",
        "decode",
        "limits",
        "compile",
        "step_times",
        "invariant",
        "index",
        "corpus",
        "kv_memory",
        "prefix_reuse",
        "grammar_backend",
        "draft",
        "second",
        "heads",
        "weights",
    ],
    "generate": ["self", "prompt", "settings"],
    "stream": ["self", "prompt", "max_new_tokens", "decode", "sampling", "stopping", "grammar", "trace", "settings"],
}


def shown(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def test_the_exported_names() -> None:
    assert sorted(lp.__all__) == sorted(EXPORTED)


@pytest.mark.parametrize("method", SETTINGS)
def test_a_methods_settings_and_defaults(method: str) -> None:
    name, defaults = SETTINGS[method]
    kind = getattr(lp, name)
    assert kind.method == method
    assert {field.name: shown(field.default) for field in dataclasses.fields(kind)} == defaults


@pytest.mark.parametrize("method", SETTINGS)
def test_help_names_the_same_settings(method: str) -> None:
    listed = {one.key.removeprefix("decode.") for one in settings_of("generate") if one.key.startswith("decode.")}
    assert set(SETTINGS[method][1]) <= listed


@pytest.mark.parametrize("function", PARAMETERS)
def test_the_parameters_of_an_engine(function: str) -> None:
    assert [*inspect.signature(getattr(lp.Engine, function)).parameters] == PARAMETERS[function]
