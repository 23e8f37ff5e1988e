"""Gathers the site's pages in build/docs: copies Markdown, mends its links, puts pictures and generated parts in.

A page is committed where a reader of the checkout looks for it, with links that hold there. In the site it may lie
elsewhere, and files that it names which are no pages are copied beside the pages.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from os.path import relpath
from pathlib import Path, PurePosixPath

from docs.pictures.ink import dark_rules
from docs.website import results, routes, settings

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "docs"
# Where pages that are not in docs/ lie in the site.
ELSEWHERE = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "demo/python-11m/README.md": "project/demo-model.md",
    "examples/deploy/README.md": "how-to/deploy.md",
}
# What a page may ask for by a comment `<!-- name -->` in a line of its own; `<!-- file PATH -->` asks for a file.
GENERATED: dict[str, Callable[[], str]] = {
    "settings": settings.all_settings,
    "routes": routes.all_routes,
    "results": results.all_results,
}
STYLE = "website/theme.css"
DARK = '[data-md-color-scheme="slate"] .picture '

_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_MARKER = re.compile(r"^<!-- ([a-z-]+) -->$", re.MULTILINE)
_FILE = re.compile(r"^<!-- file (\S+) -->$", re.MULTILINE)
_STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)


def gather() -> None:
    """Writes all pages, and the files that they name."""
    shutil.rmtree(BUILT, ignore_errors=True)
    places = place_pages()
    for source, target in places.items():
        _write(target, render(ROOT / source, places))
    _write(STYLE, (ROOT / "docs" / STYLE).read_text(encoding="utf-8") + dark_rules(DARK))


def place_pages() -> dict[str, str]:
    """Where each page of the checkout lies in the site; both are paths with slashes."""
    own = {_name(file): _name(file).removeprefix("docs/") for file in sorted((ROOT / "docs").rglob("*.md"))}
    results_pages = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    return own | ELSEWHERE | {_name(file): f"benchmarks/{file.name}" for file in results_pages}


def render(source: Path, places: dict[str, str]) -> str:
    """The text of a page as it is in the site."""
    text = _MARKER.sub(lambda found: GENERATED[found.group(1)](), source.read_text(encoding="utf-8"))
    text = _FILE.sub(lambda found: _listing(found.group(1)), text)

    def mend(found: re.Match[str]) -> str:
        return _mend(found, source, places)

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _LINK.sub(mend, part) for number, part in enumerate(parts))


def _listing(name: str) -> str:
    """A file of the checkout as a block of code."""
    return f'```python title="{name}"\n{(ROOT / name).read_text(encoding="utf-8").rstrip()}\n```'


def _mend(found: re.Match[str], source: Path, places: dict[str, str]) -> str:
    """A link or picture as it is in the site."""
    picture, words, link = found.groups()
    path, hash_sign, anchor = link.partition("#")
    if "://" in link or link.startswith("mailto:") or not path:
        return found.group(0)
    file = (source.parent / path).resolve()
    if picture and file.parent.name == "pictures" and _has_themes(file):
        return _inline(file, words)
    if file.is_dir():
        return words  # nothing in the site shows a folder
    name = _name(file)
    target = places.get(name) or _copy(file, f"files/{name}")
    here = PurePosixPath(places[_name(source)]).parent
    return f"{picture}[{words}]({PurePosixPath(relpath(target, here))}{hash_sign}{anchor})"


def _has_themes(file: Path) -> bool:
    return file.suffix == ".svg" and "<style>" in file.read_text(encoding="utf-8")


def _inline(file: Path, words: str) -> str:
    """A picture as part of the page, so that its colours follow the page's: theme.css has them."""
    svg = _STYLE.sub("", file.read_text(encoding="utf-8")).replace("<svg ", '<svg class="picture" role="img" ', 1)
    return f'<div class="picture-frame" aria-label="{words}">{svg.strip()}</div>'


def _name(file: Path) -> str:
    return file.resolve().relative_to(ROOT).as_posix()


def _write(name: str, text: str) -> None:
    (file := BUILT / name).parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _copy(file: Path, name: str) -> str:
    (target := BUILT / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return name
