"""The groups of settings that every program with an engine has, and their types."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from launch.program import configuration
from lp.methods import METHODS
from lp.model.attention import AttentionSettings
from lp.model.checkpoint import ModelSettings
from lp.sampling.settings import Sampling
from parallel.mesh import ParallelSettings


def register(name: str, schema: type, **groups: type) -> None:
    """Tells Hydra the types of a program's config, of the groups of its engine and of its own groups."""
    for method, kind in METHODS.items():
        ConfigStore.instance().store(group="decode", name=f"{method}_schema", node=kind)
    shared = {
        "model": ModelSettings(path=MISSING),
        "sampling": Sampling,
        "parallel": ParallelSettings,
        "attention": AttentionSettings,
    }
    configuration.register(name, schema, **shared, **groups)
