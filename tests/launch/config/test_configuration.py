"""A line of settings becomes typed settings, or one message; and how many ranks they ask for."""

from __future__ import annotations

import logging

import pytest

from launch.cli.line import read_line
from launch.config import configuration, engine_settings
from launch.config.engine_settings import mode_of, num_ranks
from launch.config.reference import RENAMED, settings_of
from launch.generate import GenerateSettings
from launch.serve import ServeSettings
from launch.server.settings import ServerSettings
from launch.supervisor.membership import SupervisorSettings
from parallel.mesh import Mode, ParallelSettings


@pytest.mark.parametrize("text", ["${HOME}", "???", "a ${", "${shipped:conf}", "null", "'a', [b=c", "\\${x}"])
def test_free_texts_are_literal(text: str) -> None:
    engine_settings.register("generate", GenerateSettings)
    given = [f"prompt={text}", f"prompt_file={text}", f"prompts={text}", "model=checkpoint", f"model.path={text}"]
    settings = configuration.load("generate", GenerateSettings, given)
    assert (settings.prompt, settings.prompt_file, settings.prompts, settings.model.path) == (text,) * 4


def load_biases(value: str) -> dict[int, float]:
    engine_settings.register("generate", GenerateSettings)
    given = ["prompt=a", "model.path=b", f"sampling.logit_bias={value}"]
    return configuration.load("generate", GenerateSettings, given).sampling.logit_bias


@pytest.mark.parametrize(
    ("value", "expected"), [("{1: -100}", {1: -100.0}), ("{1:-100,5:2.5}", {1: -100.0, 5: 2.5}), ("{}", {})]
)
def test_biases_of_tokens(value: str, expected: dict[int, float]) -> None:
    assert load_biases(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "{the: 3}",
            r"sampling.logit_bias.the: 'the' is not a whole number; write entries as in KEY=\{1: -100, 5: 2.5\}",
        ),
        ("{1.5: 3}", "1.5 is not a whole number"),
        ("{1: high}", r"^sampling.logit_bias.1 cannot be 'high': it must be a number$"),
        ("7", "Cannot assign int to Dict"),
        ("{1:", r"^'sampling.logit_bias=\{1:' cannot be parsed"),
    ],
)
def test_biases_that_cannot_be_used(value: str, message: str) -> None:
    with pytest.raises(configuration.UsageError, match=message):
        load_biases(value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.dtyp=float32", "there is no setting 'model.dtyp'; did you mean model.dtype?"),
        ("xyzzy=1", r"there is no setting 'xyzzy' \("),
        ("decode.windo=3", "decode=auto has no setting 'decode.windo'"),
        ("decode=nope", "decode cannot be 'nope'; it is one of auto, autoregressive"),
        ("max_new_tokens=1.5", "max_new_tokens cannot be '1.5': it must be a whole number"),
        ("sampling.temperature=hot", "sampling.temperature cannot be 'hot': it must be a number"),
        ("chat=maybe", "chat cannot be 'maybe': it must be true or false"),
        ("format=jsn", "format cannot be 'jsn'; it is one of text, json"),
        ("model.dtype=${nope}", "model.dtype: Interpolation key 'nope' not found"),
        ("stop=abc", r"stop must be a list, as in stop=\[a,b\]"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, message: str) -> None:
    engine_settings.register("generate", GenerateSettings)
    with pytest.raises(configuration.UsageError, match=message) as found:
        configuration.load("generate", GenerateSettings, ["prompt=a", "model.path=b", setting])
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_setting_is_accepted_under_its_old_name(old: str, new: str, caplog: pytest.LogCaptureFixture) -> None:
    engine_settings.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    assert new in {setting.key for setting in settings_of("serve")}
    with caplog.at_level(logging.WARNING, "lookahead"):
        settings = configuration.load("serve", ServeSettings, [f"{old}=7.5"])
    assert getattr(settings.supervisor, new.rpartition(".")[2]) == 7.5
    assert f"{old} is now called {new}" in caplog.text
    assert read_line(["serve", f"{old}=7.5"]).arguments == (f"{old}=7.5",)


def test_num_ranks() -> None:
    assert num_ranks(ParallelSettings(mode=Mode.single, ranks=4)) == 1
    assert num_ranks(ParallelSettings(lp=2, tp=2)) == 4


def test_mode_of() -> None:
    assert mode_of(ParallelSettings(lp=2, tp=2), 4) == "lp x tp"
    assert mode_of(ParallelSettings(mode=Mode.dp), 2) == "dp" and mode_of(ParallelSettings(mode=Mode.dp), 1) == "single"
    assert (
        mode_of(ParallelSettings(mode=Mode.tp, tp=3), 2) == "tp"
    )  # impossible: three-way tensor parallelism, two ranks


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("serve", []),
        ("serve demo", ["demo"]),
        ("serve org/name", ["org/name"]),
        ("serve demo server.model_names=[a,b]", ["a", "b"]),
        ("serve demo --served-model-name a --served-model-name b", ["b"]),
    ],
)
def test_a_server_knows_its_model_by_the_name_on_the_command_line(line: str, names: list[str]) -> None:
    engine_settings.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    settings = configuration.load("serve", ServeSettings, read_line(line.split()).arguments)
    assert settings.server.model_names == names


def test_options_with_dashes_become_settings() -> None:
    engine_settings.register("serve", ServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    line = ["serve", "demo", "--port", "9000", "--api-key", "a,'b", "--dtype", "float32", "--max-model-len", "64"]
    settings = configuration.load("serve", ServeSettings, read_line(line).arguments)
    assert (settings.server.port, settings.server.api_keys) == (9000, ["a,'b"])
    assert (settings.model.dtype, settings.model.max_length) == ("float32", 64)
    parallel = configuration.load("serve", ServeSettings, read_line(["serve", "--tensor-parallel-size=2"]).arguments)
    assert parallel.parallel.mode is Mode.tp and parallel.parallel.ranks == 2


def test_words_that_never_come_and_tokens_that_may() -> None:
    engine_settings.register("generate", GenerateSettings)
    given = ["prompt=a", "model.path=b", "sampling.bad_words=[[1,2],[3]]", "sampling.allowed_token_ids=[4,5]"]
    sampling = configuration.load("generate", GenerateSettings, given).sampling
    assert (sampling.bad_words, sampling.allowed_token_ids) == ([[1, 2], [3]], [4, 5])
