"""What the pages say can be done: every command is read as the program reads it, every Python block is whole.

Whether settings are described: see tests/launch/config/test_reference.py.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from docs.website.pages import GENERATED, place_pages, render
from launch.config import configuration, engine_settings
from launch.config.reference import PROGRAMS, choices_of, settings_of
from launch.server.settings import ServerSettings
from launch.supervisor.membership import SupervisorSettings
from lp.methods.registry import METHODS
from tests.docs.links import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = [page for page in PAGES if page.parent.name != "log"]
# Of how the code decides, for readers who know which method a setting belongs to.
DETAILS = [page for page in PAGES if page.name in ("choosing-drafts.md", "choosing-tokens.md", "costs.md")]
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:^|`)\s*(lookahead [a-z][^`\n]*)", re.MULTILINE)
# The commands of the program `lookahead` that have settings of their own.
COMMANDS = {"chat", "generate", "serve", "bench", "tune", "index", "cache", "ray", "demo", "doctor"}
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, kind, text in found if kind == language]


def lookahead_lines() -> list[tuple[str, str]]:
    """All lines that start the program, with the page of each."""
    found = []
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += [(name_of(page), line.strip()) for line in LINE.findall(text) if "COMMAND" not in line]
    return found


@pytest.mark.parametrize(("page", "line"), lookahead_lines())
def test_a_command_has_a_known_name_and_known_settings(page: str, line: str):
    words = shlex.split(line.partition(" | ")[0])[1:]
    name, rest = words[0], words[1:]
    assert name in COMMANDS
    task = rest.pop(0) if name == "ray" and rest else ""
    program = {"ray": f"ray_{task}", "chat": "chat_remote" if any(w.startswith("url=") for w in rest) else "chat"}
    program_name = program.get(name, name)
    if program_name not in PROGRAMS:
        assert name in ("demo", "doctor")
        return
    keys, choices = {one.key for one in settings_of(program_name)}, choices_of(program_name)
    for word in rest:
        if "=" not in word:
            continue  # a model, an option or its value
        key, _, value = word.partition("=")
        assert key in keys or key in choices, f"{key} is no setting of {name}"
        if key in choices and "," not in value and value != "...":
            assert value in choices[key], f"{key}={value} is no choice"


def test_lines_of_the_program_are_found():
    assert len(lookahead_lines()) > 40


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_python_blocks_are_python(page: Path):
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("page", [ROOT / "docs" / "start.md", ROOT / "docs" / "how-to" / "structured-output.md"])
@pytest.mark.slow
def test_python_blocks_of_the_engine_run(page: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for text in blocks(page, "python"):
        exec(compile(text.replace("max_new_tokens=32", "max_new_tokens=8"), str(page), "exec"), {})


def test_settings_in_tables_are_settings():
    """`group.name` in the how-tos names a setting of some command."""
    known = {one.key for program in PROGRAMS for one in settings_of(program)}
    groups = {key.partition(".")[0] for key in known if "." in key}
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")) + sorted((ROOT / "docs" / "concepts").glob("*.md")):
        for key in re.findall(r"`((?:" + "|".join(groups) + r")\.[a-z_]+)[=`]", page.read_text(encoding="utf-8")):
            assert key in known, f"{name_of(page)} names {key}"


def test_every_method_is_explained():
    text = (ROOT / "docs" / "concepts" / "step.md").read_text(encoding="utf-8")
    assert [method for method in METHODS if f"`{method}`" not in text] == []


def terms() -> list[str]:
    return re.findall(r"^\| \*\*([\w\- ]+)\*\* \|", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_glossary_is_in_order_and_its_words_are_used():
    words = terms()
    assert len(words) > 20 and len(set(words)) == len(words)
    assert words == sorted(words, key=str.lower)
    texts = "\n".join(page.read_text(encoding="utf-8") for page in WRITTEN if page != GLOSSARY).lower()
    assert [word for word in words if not re.search(rf"\b{re.escape(word.lower())}", texts)] == []


def test_the_glossary_has_the_words_of_the_project():
    known = {word.lower() for word in terms()}
    wanted = "rank replica row tree trunk root draft window n-gram step epoch exchange target accept prefill verify"
    assert {*wanted.split(), "kv cache"} <= known


def test_every_page_is_in_the_navigation():
    import yaml

    def names(entry: object) -> list[str]:
        if isinstance(entry, dict):
            return [name for value in entry.values() for name in names(value)]
        return [name for one in entry for name in names(one)] if isinstance(entry, list) else [str(entry)]

    nav = set(names(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = set(place_pages().values())
    assert nav <= pages
    assert {page for page in pages if not page.startswith("benchmarks/")} <= nav


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_part_is_asked_for_and_not_empty(name: str):
    asking = [page for page in PAGES if f"<!-- {name} -->" in page.read_text(encoding="utf-8").splitlines()]
    assert len(asking) == 1
    assert GENERATED[name]().count("\n| ") > 15
    assert "<!--" not in render(asking[0], place_pages())


def test_listings_are_those_of_the_files():
    page = ROOT / "docs" / "extend" / "draft-source.md"
    assert (ROOT / "examples" / "extend" / "draft_source.py").read_text(encoding="utf-8") in render(page, place_pages())


def curl_bodies() -> list[tuple[str, str, str]]:
    """The page, the route and the body of each request by curl."""
    found = []
    for page in WRITTEN:
        for text in blocks(page, ""):
            for path, body in re.findall(r"^curl [^\n]*?127\.0\.0\.1:8000(/v1/\S+).*?-d '(.*?)'$", text, re.M | re.S):
                found.append((name_of(page), path, body))
    return found


@pytest.mark.parametrize(("page", "path", "body"), curl_bodies())
def test_a_request_by_curl_is_one_that_the_server_takes(page: str, path: str, body: str):
    routes_of = pytest.importorskip("launch.server.app").routes_of
    from launch.server.app import ROUTERS, body_kind

    kinds = {route.path: kind for route in routes_of(ROUTERS) if (kind := body_kind(route))}
    fields = json.loads(body)
    kinds[path].model_validate(fields)
    assert fields.keys() <= kinds[path].model_fields.keys()


def test_requests_by_curl_are_found():
    assert len(curl_bodies()) >= 5


def settings_in_text() -> list[tuple[str, str]]:
    """Every `key=value` of a group that a how-to or concept names in a line, with its page."""
    groups = "|".join({key.partition(".")[0] for key in (one.key for one in settings_of("ray_serve")) if "." in key})
    word = rf"(?:{groups})(?:\.\w+)?=[^\s`|]+"
    pages = [page for page in WRITTEN if page.parent.name in ("how-to", "concepts") and page not in DETAILS]
    return [
        (name_of(page), line)
        for page in pages
        for line in re.findall(rf"`({word}(?: {word})*)`", page.read_text(encoding="utf-8"))
        if "NAME" not in line
    ]


@pytest.mark.parametrize(("page", "line"), sorted(set(settings_in_text())))
def test_settings_in_text_compose(page: str, line: str):
    pytest.importorskip("ray")
    from launch.cluster.program_settings import RayServeSettings

    engine_settings.register("ray_serve", RayServeSettings, server=ServerSettings, supervisor=SupervisorSettings)
    configuration.load("ray_serve", RayServeSettings, line.split(" "))
