"""curl hears all of a speech, by both versions of HTTP."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.live_server import live_server
from tests.support.programs import needs, path_of

TEXT = "Hello there."


@needs("curl")
@pytest.mark.parametrize("protocol", ["--http1.1", "--http1.0"])
def test_curl(tmp_path: Path, protocol: str) -> None:
    output = tmp_path / "hello.pcm"
    body = json.dumps({"input": TEXT, "voice": "alloy", "response_format": "pcm"})
    with live_server() as server:
        command = [path_of("curl"), "-sSf", protocol, f"{server.url}/v1/audio/speech", "-H"]
        subprocess.run([*command, "Content-Type: application/json", "-d", body, "-o", output], check=True, timeout=120)
    assert output.stat().st_size == round(len(TEXT) * 0.08 * 24000) * 2
