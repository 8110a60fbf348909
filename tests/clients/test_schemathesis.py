"""schemathesis, as its users run it, finds that the answers are those of the server's own description."""

import subprocess
import sys
from pathlib import Path

import pytest
from vivavoce_server import ServerConfig

from tests.support.live_server import live_server

pytestmark = pytest.mark.long

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("schemathesis"))
    with live_server(config=ServerConfig(max_input_chars=20)) as server:
        command = [program, "run", f"{server.url}/openapi.json", "--checks", CHECKS]
        ended = subprocess.run(
            [*command, "--max-examples", "10", "--seed", "1"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=tmp_path,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
