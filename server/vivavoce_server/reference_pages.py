"""The pages /docs (Swagger UI), /redoc (Redoc) and /asyncapi, which load nothing from other hosts.

The programs of the pages come in packages: fastapi-standalone-docs has Swagger UI and Redoc, whose logo it lets come
from the page's own address, and asyncapi-viewer a web component. All addresses in the pages are relative, so a prefix
that a proxy puts before them is right by itself.
"""

from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from vivavoce_server.errors import http_error_response
from vivavoce_server.playground import HEADERS

PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="icon" href="reference/favicon.svg">
$head
</head>
<body>
$body
</body>
</html>
""")
SWAGGER: Final = PAGE.substitute(
    title="Vivavoce: API",
    head='<link rel="stylesheet" href="reference/swagger-ui.css">',
    body='<div id="page"></div>\n<script src="reference/swagger-ui-bundle.js"></script>\n'
    '<script src="reference/start-docs.js"></script>',
)
START_SWAGGER: Final = """\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  persistAuthorization: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
REDOC: Final = PAGE.substitute(
    title="Vivavoce: API",
    head="",
    body='<redoc spec-url="openapi.json"></redoc>\n<script src="reference/redoc.standalone.js"></script>',
)
ASYNCAPI: Final = PAGE.substitute(
    title="Vivavoce: sockets",
    head='<script type="module" src="reference/asyncapi-viewer.js"></script>',
    body='<asyncapi-viewer src="asyncapi.json" sidebar></asyncapi-viewer>',
)
ICON: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<path d="M4 13v6M10 8v16M16 4v24M22 9v14M28 13v6" fill="none" stroke="#2a6f97" stroke-width="3" stroke-linecap="round"/>
</svg>
"""
PAGE_HEADERS: Final = {
    **HEADERS,
    # Swagger UI and Redoc make style elements, Redoc searches in a worker, and Swagger UI plays an answer's audio.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data:; media-src blob:; worker-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def _folder(package: str) -> Path:
    """The folder of a package's files for browsers. The package itself is not imported."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "static"


REDOC_LOGO: Final = "logo-mini.svg"
FILES: Final = {
    "swagger-ui.css": _folder("fastapi_standalone_docs") / "swagger/swagger-ui.css",
    "swagger-ui-bundle.js": _folder("fastapi_standalone_docs") / "swagger/swagger-ui-bundle.js",
    "redoc.standalone.js": _folder("fastapi_standalone_docs") / "redoc/redoc.standalone.js",
    REDOC_LOGO: _folder("fastapi_standalone_docs") / "redoc/logo-mini.svg",
    "asyncapi-viewer.js": _folder("asyncapi_viewer") / "asyncapi-viewer.js",
}
"""Name of a file in /reference/ → where it is. No path from a request is ever looked up on the disk."""
MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def swagger() -> Response:
    return HTMLResponse(SWAGGER, headers=PAGE_HEADERS)


@router.get("/redoc")
async def redoc() -> Response:
    return HTMLResponse(REDOC, headers=PAGE_HEADERS)


@router.get("/redoc/{name}")
async def redoc_logo(name: str) -> Response:
    """The logo of Redoc, which asks for it below its page."""
    return _file(name if name == REDOC_LOGO else "")


@router.get("/reference/favicon.svg")
async def icon() -> Response:
    return Response(ICON, media_type="image/svg+xml", headers=HEADERS)


@router.get("/asyncapi")
async def sockets() -> Response:
    return HTMLResponse(ASYNCAPI, headers=PAGE_HEADERS)


@router.get("/reference/start-docs.js")
async def start_swagger() -> Response:
    return Response(START_SWAGGER, media_type="text/javascript", headers=HEADERS)


@router.get("/reference/{name}")
async def file(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    path = FILES.get(name)
    if path is None:
        return http_error_response(404, f"There is no file {name!r}")
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=dict(HEADERS))
