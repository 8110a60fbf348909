"""GET /: the playground, a page to try the server with. It is an ordinary client, and needs no key to load."""

from typing import Final

import vivavoce_web
from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from vivavoce_server.errors import http_error_response

MEDIA_TYPES: Final = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
HEADERS: Final = {
    # The page neither loads from other hosts nor sends to them, whatever a text or a voice's name contains.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; media-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
FILES: Final = frozenset(
    {
        "along.js",
        "chat.js",
        "app.js",
        "audio.js",
        "client.js",
        "clone.js",
        "code.js",
        "download.js",
        "events.js",
        "index.html",
        "level.js",
        "mix.js",
        "normalize.js",
        "outputs.js",
        "page.js",
        "player.js",
        "preview.js",
        "sample.js",
        "secure.js",
        "settings.css",
        "session.js",
        "settings.js",
        "snippet.js",
        "stage.js",
        "storing.js",
        "style.css",
        "subtitles.js",
        "tape.js",
        "transport.js",
        "voices.js",
        "waveform.js",
        "worklet.js",
    }
)
"""Names of the page's files. No path from a request is ever looked up on the disk."""

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> Response:
    return _file(vivavoce_web.INDEX)


@router.get("/playground/{name}")
async def asset(name: str) -> Response:
    return _file(name) if name in FILES else http_error_response(404, f"There is no file {name!r}")


def _file(name: str) -> Response:
    path = vivavoce_web.FOLDER / name
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=dict(HEADERS))
