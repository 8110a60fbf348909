"""The docs site is built without a warning, from the repository's own files, and loads nothing from other hosts."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.http_servers import http_server
from tests.support.programs import needs
from tests.support.snippets import ROOT, site_pages
from tests.web.test_playground import run_steps

LOADED = re.compile(
    r"<(?:script|img|iframe|audio|video|source)\b[^>]*\bsrc=\"?([^\"> ]+)|<link\b([^>]*)>|url\(([^)]+)\)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves the files of a folder. Yields the address."""
    with http_server(partial(SimpleHTTPRequestHandler, directory=str(folder))) as url:
        yield url


def page_of(site: Path, source: str) -> str:
    folder = source.removesuffix("README.md").removesuffix(".md")
    return (site / folder / "index.html").read_text(encoding="utf-8")


def test_every_page_is_there_with_its_own_title(site: Path) -> None:
    pages = site_pages()
    assert len(pages) >= 12
    for page in pages:
        title = re.findall(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)[0]
        assert f"{title}<a" in page_of(site, page), page


def test_nothing_comes_from_another_host(site: Path) -> None:
    looked_at = 0
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for source, link, address in LOADED.findall(path.read_text(encoding="utf-8")):
            looked_at += 1
            named = (source or address or link).strip("\"'")
            assert named.startswith("data:") or not re.search(r"//[a-z]", named), f"{path.relative_to(site)}: {named}"
    assert looked_at > 100


@needs("chromium", "node", "tests/web/node_modules")
def test_the_pages_ask_no_other_host_in_a_browser(site: Path, tmp_path: Path) -> None:
    with served(site) as url:
        seen = run_steps(url, tmp_path, "site", driver="reference.mjs")
    assert seen["results"]["site"] == ["Vivavoce", "Moving from OpenAI in five minutes", "API"]
    # Redoc looks for its logo where only a server has it.
    assert all("404" in complaint for complaint in seen["complaints"])


def test_links_to_files_that_are_no_pages_lead_to_the_repository(site: Path) -> None:
    operations = page_of(site, "deploy/OPERATIONS.md")
    home = "https://github.com/vivavoce-speech/vivavoce/blob/main/"
    assert f'href="{home}deploy/compose/compose.cuda.yaml"' in operations
    assert f'href="{home}bench/README.md"' in operations
    assert 'href="../../server/#keys-and-limits"' in page_of(site, "docs/moving_from_openai.md")


def test_code_that_is_named_for_tests_is_shown_as_code(site: Path) -> None:
    assert "```" not in page_of(site, "docs/clients.md")


def test_the_api_is_part_of_the_site(site: Path) -> None:
    openapi = json.loads((site / "api/openapi.json").read_text(encoding="utf-8"))
    sockets = json.loads((site / "api/asyncapi.json").read_text(encoding="utf-8"))
    table = page_of(site, "api/README.md")
    for path in (*openapi["paths"], *(channel["address"] for channel in sockets["channels"].values())):
        assert f"<code>{path}</code>" in table
    for page in ("redoc.html", "asyncapi.html"):
        text = (site / "api" / page).read_text(encoding="utf-8")
        for address in re.findall(r'(?:src|href|spec-url)="([^"]+)"', text):
            assert (site / "api" / address).is_file(), address
