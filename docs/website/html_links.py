"""Checks the built site: every link leads to a page and heading that exist, and nothing is loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by tag and attribute. A `link` may also only name another page.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("link", "href")}
NAMED_ONLY = {"canonical", "prev", "next", "alternate"}


class _Page(HTMLParser):
    """ids: the anchors of a page. links: what it links to. loads: what a browser loads for it."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for name, value in given.items():
            if (tag, name) in LOADED and given.get("rel") not in NAMED_ONLY:
                self.loads.append(value)


def find_faults(site: Path) -> list[str]:
    """What is wrong with the pages of a site, a line each; empty if nothing is."""
    pages = {file.resolve(): _Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        outside = [f"{name} loads {load}" for load in page.loads if urlsplit(load).scheme in ("http", "https")]
        links = [*page.links, *(load for load in page.loads if not urlsplit(load).scheme)]
        if name.name != "404.html":  # it is shown at any address, so its links begin at the site's own
            found += [*outside, *(fault for link in links if (fault := _fault(link, file, pages)))]
    return found


def _fault(link: str, file: Path, pages: dict[Path, _Page]) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return f"{file.name} of {file.parent.name}: the link {link} leads nowhere"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids and not anchor.startswith("__"):
        return f"{file.name} of {file.parent.name}: the link {link} names no heading"
    return ""
