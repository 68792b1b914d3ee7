"""The page at `/` and its parts: files beside this one, read once, under a policy that keeps it at home."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.errors import NotFound, shown

HOME = "/"
PREFIX = "/page/"
HTML = "index.html"
SCRIPTS = (
    "advice.js",
    "answer.js",
    "api.js",
    "budget.js",
    "compare.js",
    "controls.js",
    "dom.js",
    "format.js",
    "main.js",
    "pace.js",
    "share.js",
    "talk.js",
    "trouble.js",
    "view.js",
    "waterfall.js",
)
MEDIA_TYPES: Mapping[str, str] = {
    HTML: "text/html",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}
# The page holds no secret: it opens without a key, and asks for one when the service wants it.
PAGE_PATHS = frozenset((HOME, *(PREFIX + name for name in MEDIA_TYPES if name != HTML)))

POLICY = {
    # Nothing from elsewhere, nothing inline, nobody's frame, and no markup but that of the file itself.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the page, as it is sent."""

    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """The file, or nothing where the browser has this one. It asks each time, so a new release shows."""
        headers = {**POLICY, "etag": self.etag, "cache-control": "no-cache"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def playground_routes() -> APIRouter:
    """`/` and the files it asks for."""
    parts = {name: _part(name) for name in MEDIA_TYPES}
    router = APIRouter(include_in_schema=False)
    reading = ["GET", "HEAD"]

    @router.api_route(HOME, methods=reading, summary="Playground: chat, and see where the time goes")
    async def home(request: Request) -> Response:
        return parts[HTML].response(request)

    @router.api_route(PREFIX + "{name}", methods=reading, summary="Style and scripts of the playground")
    async def part(request: Request, name: str) -> Response:
        if name not in parts or name == HTML:
            raise NotFound(f"The page has no part {shown(name)}.")
        return parts[name].response(request)

    return router


def _part(name: str) -> Part:
    content = (files(__package__) / "page" / name).read_bytes()
    return Part(content, MEDIA_TYPES[name], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
