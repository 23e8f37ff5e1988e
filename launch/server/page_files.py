"""The page at GET /, and the page at GET /docs that shows the OpenAPI document. They load nothing from elsewhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

# The page, which a setting can leave out, and the documentation.
page = APIRouter()
documentation = APIRouter()

FOLDER = Path(__file__).with_name("page")
# Only the page's own files, and requests to this server. No script can make elements of text (trusted types).
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",  # kept by browsers, and asked for again with its tag: never older than the server
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
DOCUMENTATION = Path(__file__).with_name("documentation.html")
# The documentation's own script and style, requests to this server, and nothing else.
DOCUMENTATION_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class PageFile:
    """A file of the page, as it is sent."""

    def __init__(self, path: Path):
        self.content = path.read_bytes()
        self.media_type = TYPES[path.suffix]
        self.tag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def response(self, known_tags: str) -> Response:
        """known_tags: the request's If-None-Match; a browser that has this version is told to use it."""
        headers = {**HEADERS, "ETag": self.tag}
        if self.tag in known_tags.replace("W/", "").split(", "):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def _serve(path: str, file: PageFile) -> None:
    async def send(request: Request) -> Response:
        return file.response(request.headers.get("if-none-match", ""))

    page.add_api_route(path, send, include_in_schema=False)


for _path in sorted(FOLDER.rglob("*.*")):
    _file = PageFile(_path)
    _serve(f"/page/{_path.relative_to(FOLDER).as_posix()}", _file)
    if _path == FOLDER / "index.html":
        _serve("/", _file)


@documentation.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    headers = {"Content-Security-Policy": DOCUMENTATION_POLICY}
    return HTMLResponse(DOCUMENTATION.read_text(encoding="utf-8"), headers=headers)
