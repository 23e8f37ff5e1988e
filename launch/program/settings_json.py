"""Settings as JSON values and back: other processes are told what to do without a command line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from omegaconf import OmegaConf

from launch.program.runtime import RuntimeSettings
from lp import methods

Settings = TypeVar("Settings", bound=RuntimeSettings)


def to_json_values(settings: RuntimeSettings, schema: type[RuntimeSettings]) -> dict[str, Any]:
    """What `schema` has of the settings, as JSON values."""
    names = {field.name for field in dataclasses.fields(schema)}
    values = {**dataclasses.asdict(settings), "decode": methods.to_dict(settings.decode)}
    return json.loads(json.dumps({key: value for key, value in values.items() if key in names}))


def from_json_values(values: dict[str, Any], schema: type[Settings]) -> Settings:
    """The inverse; what is left out has its default."""
    sampling = {**values["sampling"]}
    sampling["logit_bias"] = {int(token): bias for token, bias in sampling["logit_bias"].items()}  # JSON's are strings
    typed = OmegaConf.merge(OmegaConf.structured(schema), {**values, "sampling": sampling, "decode": None})
    settings = OmegaConf.to_object(typed)
    assert isinstance(settings, schema)
    settings.decode = methods.from_dict(values["decode"])
    return settings
