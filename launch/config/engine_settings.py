"""The settings of programs with an engine: their types for Hydra, their form as JSON, and what they say of ranks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from launch.config import configuration
from launch.config.runtime import RuntimeSettings
from lp.methods.registry import METHODS, from_dict
from lp.model.attention import AttentionSettings
from lp.model.checkpoint import ModelSettings
from lp.sampling.settings import Sampling
from parallel.mesh import Mode, ParallelSettings, name_mode


def register(name: str, schema: type, **groups: type) -> None:
    """Tells Hydra the types of a program's config, of the groups of its engine and of its own groups."""
    for method, kind in METHODS.items():
        ConfigStore.instance().store(group="decode", name=method, node=kind)
    shared = {
        "model": ModelSettings(path=MISSING),
        "sampling": Sampling,
        "parallel": ParallelSettings,
        "attention": AttentionSettings,
    }
    configuration.register(name, schema, **shared, **groups)


Settings = TypeVar("Settings", bound=RuntimeSettings)


def to_json_values(settings: RuntimeSettings, schema: type[RuntimeSettings]) -> dict[str, Any]:
    """Returns those settings that `schema` has, as JSON values."""
    names = {field.name for field in dataclasses.fields(schema)}
    values = {**dataclasses.asdict(settings), "decode": settings.decode.to_dict()}
    return json.loads(json.dumps({key: value for key, value in values.items() if key in names}))


def from_json_values(values: dict[str, Any], schema: type[Settings]) -> Settings:
    """Returns the settings that `to_json_values` has converted.

    `sampling` and `decode` must be there; other settings that are left out get their defaults.
    """
    sampling = {**values["sampling"]}
    sampling["logit_bias"] = {
        int(token): bias for token, bias in sampling["logit_bias"].items()
    }  # JSON has only strings as keys
    typed = OmegaConf.merge(OmegaConf.structured(schema), {**values, "sampling": sampling, "decode": None})
    settings = OmegaConf.to_object(typed)
    assert isinstance(settings, schema)
    settings.decode = from_dict(values["decode"])
    return settings


def num_ranks(parallel: ParallelSettings) -> int:
    """The number of ranks to start: one in single mode, else parallel.ranks or the product of the degrees."""
    return 1 if Mode(parallel.mode) is Mode.single else parallel.wanted_ranks


def mode_of(parallel: ParallelSettings, ranks: int) -> str:
    """See name_mode; for degrees that are impossible, the mode that was asked for."""
    try:
        degrees = parallel.resolve_degrees(ranks)
    except ValueError:
        return str(parallel.mode)
    return name_mode(degrees, Mode(parallel.mode))
