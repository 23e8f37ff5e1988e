"""`lookahead` as a user sees it before a model is needed: help, version, mistakes, and what is imported for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lp
from launch.cli import main, programs
from launch.cli.programs import PROGRAMS
from launch.config.reference import settings_of

HEAVY = {"hydra", "numpy", "omegaconf", "ray", "rich", "torch", "transformers"}


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lookahead-parallel {lp.__version__}\n"


def test_without_an_installed_package_the_version_is_the_checkouts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    assert lp.read_version("no-such-package", tmp_path) == "1.2+checkout"
    assert lp.read_version("no-such-package", tmp_path / "elsewhere") == "0+checkout"


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name.split()[0]} " in shown for name in PROGRAMS)
    assert "Measures modes of parallelism side by side." in shown


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_has_every_setting_with_its_default_and_its_values(name: str) -> None:
    shown = programs.describe(name)
    assert all(len(line) <= 120 for line in shown.splitlines() if "   (" not in line and "lookahead" not in line)
    for setting in settings_of(PROGRAMS[name].configuration or "cache") if PROGRAMS[name].configuration else []:
        assert f"\n  {setting.key}={setting.default}   (" in shown
        if setting.values:
            assert f"  {setting.key}={setting.default}   ({'|'.join(setting.values)})" in shown


def test_the_first_help_of_a_server_fits_a_screen_and_names_the_usual_options() -> None:
    shown = programs.describe("serve", is_whole=False)
    assert len(shown.splitlines()) <= 50 and "--help-all" in shown
    assert all(f"\n  {option} " in shown for option in programs.OPTIONS) and len(programs.OPTIONS) == 10
    assert "server.max_body_bytes" not in shown
    settings = {setting.key for setting in settings_of("serve")}
    assert all({*option.settings} <= settings | {"decode", "parallel"} for option in programs.OPTIONS.values())


def test_the_help_of_a_command_without_its_second_word_names_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["ray", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"lookahead ray {task}" in shown for task in ("serve", "generate", "bench"))


def test_examples_of_help_are_lines_that_are_understood() -> None:
    import shlex

    from launch.cli.line import read_line

    for name, program in PROGRAMS.items():
        for example in program.examples:
            assert read_line(shlex.split(f"{name} {example}")).name == name


def test_help_shows_what_choosing_a_group_means() -> None:
    shown = programs.describe("serve")
    assert "parallel=NAME" in shown and "attention=auto|eager|flash" in shown
    assert " ".join(["lookahead", "Lookahead", "decoding", "(arXiv", "2402.02057,"]) in " ".join(shown.split())


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["serve", "--help"], ["serve", "--help-all"], ["serve", "sever.port=1"]]
)
def test_nothing_heavy_is_imported_for_help_and_for_mistakes(words: list[str]) -> None:
    program = (
        "import sys; from launch.cli.main import main\n"
        f"code = main({words!r})\nprint(*sys.modules, file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if "sever.port=1" in words else 0)
    assert not HEAVY & {name.partition(".")[0] for name in done.stderr.split()}


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["srve"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "lookahead: there is no command 'srve'; did you mean serve? (lookahead --help)\n"


@pytest.mark.slow
def test_a_command_whose_extra_is_not_installed_names_it() -> None:
    program = (
        "import sys; sys.modules['fastapi'] = None\nfrom launch.cli.main import main; sys.exit(main(['serve', 'demo']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert done.stderr == "lookahead: fastapi is not installed: pip install 'lookahead-parallel[serve]'\n"


def test_help_into_a_pipe_that_is_closed_says_nothing() -> None:
    command = f"{sys.executable} -m launch serve --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("usage: lookahead serve") and done.stderr == ""
