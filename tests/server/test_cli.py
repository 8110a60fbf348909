"""The server as a process: start, announcement, draining, stop, and clear messages on failure."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import FastAPI
from vivavoce_server import ServerConfig, cli, create_app
from vivavoce_server.engines import warn_if_not_intelligible
from vivavoce_server.listeners import bind
from vivavoce_server.sighup import SighupHandler

from tests.support.live_server import fake_engine
from tests.support.server_process import SERVE, serving
from tests.support.texts import plain_text
from tests.support.waiting import HUNG_S, wait_until

SPEECH_BODY = {"input": plain_text(4000), "voice": "heart", "response_format": "pcm"}
"""15 MB of audio: more than sockets and the engine buffer for a client that does not read."""


def test_it_announces_an_address_and_a_curl_line_that_works(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake") as (process, url):
        assert httpx.get(f"{url}/ready").status_code == 200
        assert process.stdout is not None
        announced = [process.stdout.readline() for _ in range(2)]
        assert url in announced[0]
        output = tmp_path / "hello.wav"
        command = announced[1].replace("hello.wav", str(output))
        subprocess.run(["/bin/sh", "-c", command], check=True)
        assert output.read_bytes()[:4] == b"RIFF"
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    assert "warming up" in stderr
    assert stderr.count("left out of garbage collection") == 2, "the engine's process and the server's"


@pytest.mark.long
def test_the_announced_curl_line_has_a_place_for_the_key(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--api-keys", "sk-mine") as (process, _):
        assert process.stdout is not None
        announced = [process.stdout.readline() for _ in range(2)]
        output = tmp_path / "hello.wav"
        command = announced[1].replace("hello.wav", str(output))
        subprocess.run(["/bin/sh", "-c", command], check=True, env={**os.environ, "VIVAVOCE_API_KEY": "sk-mine"})
        assert output.read_bytes()[:4] == b"RIFF"
        assert "sk-mine" not in "".join(announced)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_running_speech_is_finished_before_the_process_ends(tmp_path: Path, signum: signal.Signals) -> None:
    # A client that does not read yet holds its response open for as long as the test needs.
    with serving(tmp_path, "--model", "fake") as (process, url), socket.create_connection(address_of(url)) as reader:
        reader.sendall(raw_request(SPEECH_BODY))
        head = reader.recv(4096)
        process.send_signal(signum)
        wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
        refused = httpx.post(f"{url}/v1/audio/speech", json=SPEECH_BODY)
        assert refused.status_code == 503
        received = head + read_all(reader)
        process.wait(timeout=HUNG_S)
    assert process.returncode == 0
    assert received.endswith(b"0\r\n\r\n"), "the chunked body has its end"


@pytest.mark.long
def test_speech_beyond_the_grace_time_is_cut_and_noticed(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--model", "fake", "--grace-s", "0.1") as (process, url),
        socket.create_connection(address_of(url)) as reader,
    ):
        reader.sendall(raw_request(SPEECH_BODY))
        head = reader.recv(4096)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=HUNG_S)
        received = head + read_all(reader)
    assert not received.endswith(b"0\r\n\r\n")


def address_of(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


def raw_request(body: Mapping[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def read_all(reader: socket.socket) -> bytes:
    received = b""
    try:
        while piece := reader.recv(1 << 20):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--port",), ("--port", "0", "--wyoming-port")], ids=["http", "wyoming"])
def test_a_taken_port_is_told_before_the_model_loads(flags: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*SERVE, "--model", "fake", *flags, port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "loading" not in ended.stderr


@pytest.mark.long
def test_a_bare_install_tells_in_one_line_what_the_module_needs() -> None:
    lacking = (
        "import runpy, sys; sys.modules['fastapi'] = None; runpy.run_module('vivavoce_server', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", lacking], capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "fastapi" in line
    assert line.endswith("pip install 'vivavoce-speech[server]'")


@pytest.mark.long
def test_a_recognizer_that_is_asked_for_and_missing_ends_the_start_in_one_line() -> None:
    lacking = (
        "import runpy, sys; sys.modules['faster_whisper'] = None; "
        "runpy.run_module('vivavoce_server', run_name='__main__')"
    )
    command = [sys.executable, "-c", lacking, "--model", "fake", "--ref-text-judge", "asr"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("vivavoce: ref_text_judge asr needs a speech recognizer")
    assert line.endswith("pip install 'vivavoce-speech[eval]'")


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (["--port", "many"], {}, "--port must be a whole number from 0 to 65535"),
        (["--max-streams", "1.5"], {}, "--max-streams must be a whole number above 0 and at most 4096, or auto"),
        ([], {"VIVAVOCE_RUNNER": "vulkan"}, "VIVAVOCE_RUNNER must be one of auto, triton, native, torch"),
        ([], {"VIVAVOCE_PROT": "1"}, "VIVAVOCE_PROT"),
        (["--api-keys-file", "/nowhere/keys.toml"], {}, "/nowhere/keys.toml"),
        (["--api-keys", "same,same"], {}, "given twice"),
        (["--prot", "1"], {}, "there is no option --prot; did you mean --port?"),
        (["--no-eager", "x"], {}, "--no-eager takes no value, not 'x'"),
        (["many"], {}, "there is nothing to do with 'many'"),
        (["--config", "/nowhere.toml"], {}, "--config: /nowhere.toml cannot be read: No such file or directory"),
        (["--wyoming-zeroconf"], {}, "--wyoming-zeroconf: there is no port to announce; set --wyoming-port too"),
    ],
)
def test_bad_settings_are_named(flags: list[str], environment: dict[str, str], words: str) -> None:
    command = [*SERVE, "--model", "fake", *flags]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=HUNG_S, check=False, env={**os.environ, **environment}
    )
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1, "one line, and no traceback"


@pytest.mark.long
@pytest.mark.parametrize(
    ("card", "warned"), [("It is NOT intelligible.", True), ("It speaks clearly.", False), (None, False)]
)
def test_an_unintelligible_checkpoint_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], card: str | None, warned: bool
) -> None:
    if card is not None:
        (tmp_path / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    warn_if_not_intelligible(tmp_path)
    assert ("understandable" in capsys.readouterr().err) == warned


@pytest.mark.long
def test_the_api_document_is_made_before_the_first_client_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[FastAPI] = []

    class Server:
        def __init__(self, app: FastAPI, *_: object) -> None:
            self._app = app

        def run(self, sockets: list[socket.socket]) -> None:
            assert self._app.openapi_schema is not None
            served.append(self._app)

    monkeypatch.setattr(cli, "DrainingServer", Server)
    config = ServerConfig()
    app = create_app(fake_engine(), config)
    assert app.openapi_schema is None
    sighup = cast(SighupHandler, None)  # a real one would take the signal from the test's process
    with bind("127.0.0.1", 0) as listener:
        cli.serve(app, config, [listener], sighup)
    assert served == [app]
