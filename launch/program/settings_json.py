"""Converts settings to JSON values and back, to hand them to processes that have no command line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from omegaconf import OmegaConf

from launch.program.runtime import RuntimeSettings
from lp import methods

Settings = TypeVar("Settings", bound=RuntimeSettings)


def to_json_values(settings: RuntimeSettings, schema: type[RuntimeSettings]) -> dict[str, Any]:
    """Returns those settings that `schema` has, as JSON values."""
    names = {field.name for field in dataclasses.fields(schema)}
    values = {**dataclasses.asdict(settings), "decode": methods.to_dict(settings.decode)}
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
    settings.decode = methods.from_dict(values["decode"])
    return settings
