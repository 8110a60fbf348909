"""Hooks of MkDocs: the site's pages are files of the repository, at their own paths, and the API's documents.

A link between two Markdown files therefore works on GitHub and on the site. A link to a file that is no page leads to
the repository. MkDocs checks all others (`mkdocs build --strict`).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig, asyncapi, create_app, reference_pages

ROOT = Path(__file__).parents[2]
PICTURES = ("docs/*.png", "docs/*.svg")
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```[a-z]+) [a-z_]+/[a-z_]+$", re.MULTILINE)
API = "api"
API_PAGE = """\
# API

A server has these pages at `/redoc`, `/docs` and `/asyncapi`, and the documents at `/openapi.json` and
`/asyncapi.json`.

* [All routes](redoc.html), with every field, its range and an example
* [All sockets](asyncapi.html), with every message
* the documents themselves: [openapi.json](openapi.json), [asyncapi.json](asyncapi.json)
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, the pages of the navigation, their pictures, and the documents of the API."""
    folder = Path(config.docs_dir)
    kept = [file for file in files if file.abs_src_path is None or folder not in Path(file.abs_src_path).parents]
    pages = [uri for uri in _uris(config.nav) if not uri.startswith(f"{API}/")]
    pictures = [path.relative_to(ROOT).as_posix() for pattern in PICTURES for path in sorted(ROOT.glob(pattern))]
    own = [File.generated(config, uri, abs_src_path=str(ROOT / uri)) for uri in (*pages, *pictures)]
    return Files([*kept, *own, *_api(config)])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to files that are no pages to the repository. Raises FileNotFoundError for a file that is missing."""
    here = PurePosixPath(page.file.src_uri).parent
    repository = config.extra["repository"]

    # A client's name behind the language, which tests read, is none of a fence's options here.
    markdown = FENCE.sub(r"\1", markdown)

    def lead(match: re.Match[str]) -> str:
        target = _normal(here / match[1])
        if files.get_file_from_path(target) is not None or target.startswith(f"{API}/"):
            return match[0]
        path = ROOT / target
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {match[1]}, which is not there")
        return f"{repository}/{'tree' if path.is_dir() else 'blob'}/main/{target}{match[2] or ''}"

    return LINK.sub(lead, markdown)


def _uris(nav: object) -> Iterator[str]:
    """The pages of a navigation, which is lists and dicts of them."""
    if isinstance(nav, str):
        if "://" not in nav:
            yield nav
    elif isinstance(nav, dict):
        for each in nav.values():
            yield from _uris(each)
    elif isinstance(nav, list):
        for each in nav:
            yield from _uris(each)


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _api(config: MkDocsConfig) -> Iterator[File]:
    """The API's page with a table of all routes, and the pages that a server has, with their files."""
    app = create_app(Engine(FakeRunner(), EngineConfig(), fake_voices()), ServerConfig())
    openapi = app.openapi()
    sockets = asyncapi.document("localhost:8000", "http", "", has_keys=False)
    rows = [
        f"| {method.upper()} | `{path}` | {operation['summary']} |"
        for path, item in openapi["paths"].items()
        for method, operation in item.items()
    ]
    rows += [f"| WebSocket | `{channel['address']}` | {channel['title']} |" for channel in sockets["channels"].values()]
    table = "\n".join(["| method | path | what it does |", "|---|---|---|", *rows])
    texts = {
        "README.md": f"{API_PAGE}\n{table}\n",
        "openapi.json": json.dumps(openapi),
        "asyncapi.json": json.dumps(sockets),
        "redoc.html": reference_pages.REDOC,
        "asyncapi.html": reference_pages.ASYNCAPI,
        "reference/favicon.svg": reference_pages.ICON,
    }
    for name, text in texts.items():
        yield File.generated(config, f"{API}/{name}", content=text)
    for name in ("redoc.standalone.js", "asyncapi-viewer.js"):
        yield File.generated(config, f"{API}/reference/{name}", abs_src_path=str(reference_pages.FILES[name]))
