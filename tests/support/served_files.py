"""An HTTP server that streams files in chunks, without their lengths, and a browser that reads them."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.http_servers import http_server
from tests.support.programs import path_of

DRIVER = Path(__file__).parents[1] / "web" / "files.mjs"
PAGE = b"<!doctype html><title>files</title><link rel=icon href=data:,>"
CHUNK_BYTES = 4096


@contextmanager
def served(files: Mapping[str, tuple[str, bytes]]) -> Iterator[str]:
    """Yields the address of a server of these files: name → media type and content."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            media_type, content = files.get(self.path.removeprefix("/"), ("text/html", PAGE))
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(content), CHUNK_BYTES):
                chunk = content[start : start + CHUNK_BYTES]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Handler) as url:
        yield f"{url}/"


def read_by_chromium(files: Mapping[str, tuple[str, bytes]]) -> dict[str, dict[str, Any]]:
    """Returns what Chromium decodes of each file; see tests/web/files.mjs."""
    with served(files) as url:
        command = [path_of("node"), str(DRIVER), url, path_of("chromium"), *files]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    return results
