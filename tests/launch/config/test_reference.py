"""Every setting of every command is described, and what is said of its default is what Hydra composes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launch import bench, cache, chat, doctor, generate, index, serve, tune
from launch.config import engine_settings, reference
from launch.config.reference import PROGRAMS, choices_of, parameters, settings_of
from launch.data.workloads import WorkloadSettings
from launch.server.settings import ServerSettings
from launch.supervisor.membership import SupervisorSettings

program_settings: Any = pytest.importorskip("launch.cluster.program_settings", exc_type=ImportError)  # needs Ray

SERVING = {"server": ServerSettings, "supervisor": SupervisorSettings}
SCHEMAS: dict[str, tuple[type, dict[str, type]]] = {
    "generate": (generate.GenerateSettings, {}),
    "chat": (chat.ChatSettings, {"supervisor": SupervisorSettings}),
    "chat_remote": (chat.RemoteChatSettings, {}),
    "serve": (serve.ServeSettings, SERVING),
    "bench": (bench.BenchSettings, {"workload": WorkloadSettings}),
    "tune": (tune.TuneSettings, {"workload": WorkloadSettings}),
    "index": (index.IndexSettings, {}),
    "cache": (cache.CacheSettings, {}),
    "doctor": (doctor.DoctorSettings, {}),
    "ray_generate": (program_settings.RayGenerateSettings, {"supervisor": SupervisorSettings}),
    "ray_serve": (program_settings.RayServeSettings, SERVING),
}


def composed(program: str) -> dict[str, Any]:
    """All settings of a command as Hydra composes them, by their keys. Those of decoding methods are left out."""
    schema, groups = SCHEMAS[program]
    engine_settings.register(program, schema, **groups)
    with initialize_config_dir(config_dir=str(reference.conf()), version_base="1.3"):
        config = compose(program, overrides=["hydra/job_logging=none", "hydra/hydra_logging=none"])
    values = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(values, dict)
    return {key: value for key, value in flat(values, "") if key.partition(".")[0] != "decode"}


def flat(values: dict[Any, Any], prefix: str) -> list[tuple[str, Any]]:
    found = []
    for key, value in values.items():
        inner = isinstance(value, dict) and key != "logit_bias"
        found += flat(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return found


def test_no_command_is_left_out():
    assert PROGRAMS.keys() == SCHEMAS.keys() == {file.stem for file in reference.conf().glob("*.yaml")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_is_described(program: str):
    assert [one.key for one in settings_of(program) if len(one.meaning) < 5 or "see " in one.meaning.lower()] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_keys_and_defaults_are_those_of_hydra(program: str):
    told = {one.key: one.default for one in settings_of(program) if one.key.partition(".")[0] != "decode"}
    real = composed(program)
    assert told.keys() == real.keys()
    for key, value in real.items():
        if not str(value).startswith("${"):  # found out when the command runs
            assert told[key] == ("" if value == "???" else reference._text(value)), key


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_setting_of_few_values_has_its_default_among_them(program: str):
    for one in settings_of(program):
        assert not one.values or one.default in one.values, one.key


def test_each_method_has_its_own_settings():
    keys = {(one.method, one.key): one for one in settings_of("serve") if one.method}
    assert keys["lookahead", "decode.window"].default == "7"
    assert keys["jacobi", "decode.window"].default == "8"
    assert ("autoregressive", "decode.window") not in keys
    assert keys["auto", "decode.max_rows"].group == "decode"


def test_choices_of_groups_come_with_what_they_are():
    choices = choices_of("serve")
    assert choices["model"].keys() == {"checkpoint", "demo", "gemma3-270m", "smollm2"}
    assert all(choices["decode"].values()) and choices["parallel"]["lp"].startswith("Lookahead parallelism")
    assert "workload" not in choices and "workload" in choices_of("bench")


def test_meanings_are_read_from_a_docstring():
    docstring = "What it is.\n\none: the first,\nin two lines. two, three: both of: them. It goes on.\n\nthree_s: no."
    assert parameters(docstring, ["one", "two", "three"]) == {
        "one": "the first, in two lines.",
        "two": "both of: them. It goes on.",
        "three": "both of: them. It goes on.",
    }


def test_it_imports_nothing_heavy():
    source = "import sys; from launch.config import reference; reference.settings_of('serve'); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "transformers", "hydra", "omegaconf", "pydantic"}.isdisjoint(found)
