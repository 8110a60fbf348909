"""--uds: a socket file in place of a port, with permissions, for one server, and removed at the end."""

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from vivavoce_server.unix_socket import UnixSocket
from websockets.sync.client import unix_connect

from tests.server.test_cli import SPEECH_BODY, raw_request, read_all
from tests.support.server_process import SERVE, launched, serving, url_of
from tests.support.waiting import HUNG_S, wait_until

QUIET = [*SERVE, "--model", "fake", "--log-level", "error"]
SPEECH = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_server_speaks_on_a_socket_file_and_takes_it_away(tmp_path: Path) -> None:
    path = tmp_path / "speech.sock"
    with serving(tmp_path, "--model", "fake", "--uds", str(path)) as (process, address):
        assert address == f"unix:{path}"
        assert mode_of(path) == 0o660
        assert process.stdout is not None
        assert str(path) in process.stdout.readline()
        command = process.stdout.readline().replace("hello.wav", str(tmp_path / "hello.wav"))
        subprocess.run(["/bin/sh", "-c", command], check=True)
        assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            answer = client.post("/v1/audio/speech", json=SPEECH)
            assert len(answer.content) == 3 * 1920 * 2
        with unix_connect(str(path), "ws://localhost/v1/audio/speech/stream") as live:
            live.send(json.dumps({"type": "session.config", "voice": "heart"}))
            assert json.loads(live.recv(HUNG_S))["type"] == "session.created"
        again = subprocess.run(
            [*QUIET, "--uds", str(path)], capture_output=True, text=True, timeout=HUNG_S, check=False
        )
        assert (again.returncode, again.stderr) == (1, f"vivavoce: cannot listen on {path}: another server has it\n")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    assert sorted(each.name for each in tmp_path.glob("speech*")) == []


def test_a_client_that_has_sent_all_gets_its_answer_and_one_that_leaves_frees_the_row(tmp_path: Path) -> None:
    path = tmp_path / "speech.sock"
    with serving(tmp_path, "--model", "fake", "--uds", str(path)):
        with socket.socket(socket.AF_UNIX) as half:
            half.connect(str(path))
            half.sendall(raw_request(SPEECH))
            half.shutdown(socket.SHUT_WR)
            assert read_all(half).endswith(b"0\r\n\r\n")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:

            def active() -> str:
                lines = client.get("/metrics").text.splitlines()
                return next(line for line in lines if line.startswith("vivavoce_active_rows")).split()[-1]

            with socket.socket(socket.AF_UNIX) as leaving:
                leaving.connect(str(path))
                leaving.sendall(raw_request(SPEECH_BODY))
                leaving.shutdown(socket.SHUT_WR)
                assert leaving.recv(12) == b"HTTP/1.1 200"
                assert active() == "1.0"
            wait_until(lambda: active() == "0.0")


def test_a_file_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "speech.sock"
    with serving(tmp_path, "--model", "fake", "--uds", str(path)) as (process, _):
        process.kill()
        process.communicate(timeout=HUNG_S)
    assert path.exists()
    (tmp_path / "address").unlink()
    with launched(tmp_path, "--model", "fake", "--uds", str(path), "--uds-mode", "600") as (process, address_file):
        assert url_of(process, address_file) == f"unix:{path}"
        assert mode_of(path) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions_do_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o777)
    try:
        bound = UnixSocket(tmp_path / "a.sock", mode)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a.sock") == mode
    bound.remove()
    assert list(tmp_path.iterdir()) == []


def test_one_of_many_servers_that_start_together_has_the_path(tmp_path: Path) -> None:
    bound: list[UnixSocket] = []
    refused: list[OSError] = []

    def start() -> None:
        try:
            bound.append(UnixSocket(tmp_path / "a.sock", 0o600))
        except OSError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(bound), len(refused)) == (1, 7)
    bound[0].remove()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(OSError, match="a file that is no socket"):
        UnixSocket(path, 0o600)
    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_that_took_the_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    bound = UnixSocket(path, 0o600)
    path.rename(tmp_path / "moved")
    path.write_text("mine")
    bound.remove()
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("name", "reason"), [("a" * 200, "too long"), ("none/a.sock", "No such file or directory")])
def test_a_path_that_cannot_be_bound_is_told_in_a_line(tmp_path: Path, name: str, reason: str) -> None:
    command = [*QUIET, "--uds", str(tmp_path / name)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("vivavoce: cannot listen on ")
    assert reason in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
