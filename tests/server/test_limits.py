"""Hostile sizes and shapes get a clear 4xx, or a 507 if the disk is at fault. The server keeps serving."""

import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig

from tests.support.cloning import SPEECH, VOICES, recording, storing_server
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.recordings import voice_like, wav
from tests.support.waiting import HUNG_S

JSON = {"Content-Type": "application/json"}
GOOD = {"input": "Hi!", "voice": "heart", "response_format": "pcm", "seed": 5}
DEEP = 100_000
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def assert_alive(server: LiveServer) -> None:
    assert httpx.post(server.url + SPEECH, json=GOOD).content == pcm_of(5, 3)


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return response.status_code, error["code"], error["param"]


# ---- shapes of JSON


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"[" * DEEP, "invalid_body"),
        (b'{"input": ' * DEEP + b"1" + b"}" * DEEP, "invalid_body"),
        (b'{"input": "a", "voice": ' + b"[" * 900 + b"]" * 900 + b"}", "invalid_body"),
        (b'{"input": "a", "voice": "heart", "seed": ' + b"9" * 10_000 + b"}", "invalid_body"),
        (b'{"input": "a", "voice": "heart", "speed": 1e999}', "invalid_value"),
        (b'{"input": "a", "voice": "heart", "\\ud800": 1}', "unknown_parameter"),
        (b'{"input": "a", "voice": "\\ud800"}', "invalid_value"),
        (b'{"input": "a", "voice": "heart\\u0000"}', "voice_not_found"),
        (b'{"input": "a", "voice": "heart", "input": 5}', "invalid_value"),
        (b"\x00" * 1000, "invalid_json"),
    ],
    ids=range(10),
)
def test_shapes_of_json(server: LiveServer, content: bytes, code: str) -> None:
    status, got, _ = refusal(httpx.post(server.url + SPEECH, content=content, headers=JSON))
    assert (status, got) == (400, code)
    assert_alive(server)


@pytest.mark.parametrize("path", ["/v1/audio/speech/stream", "/v1/text-to-speech/heart/stream-input"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("message", ["[" * DEEP, '{"type": ' * DEEP, '{"api_key": ' + "[" * DEEP])
async def test_depth_of_live_messages(path: str, keyed: bool, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.live_socket.PATH", path)
    with live_server(config=ServerConfig(api_keys=(SecretStr("k"),) if keyed else ())) as server:
        async with dial(server) as socket:
            await socket.connection.send(message)
            assert await socket.close_code() in ((1008, 1009) if keyed else (1002, 1009))


# ---- sizes of forms


def test_a_form_of_many_fields_is_refused(tmp_path: Path) -> None:
    with storing_server(tmp_path / "voices") as server:
        form = {f"field{number}": "x" for number in range(2000)}
        assert refusal(httpx.post(server.url + VOICES, data=form, files={"a": b""}))[0] == 400
        large = {"name": "ada", "consent": "x" * 2**21}
        files = {"audio_sample": recording(0)}
        assert refusal(httpx.post(server.url + VOICES, data=large, files=files))[0] == 400
        assert_alive(server)


@pytest.mark.parametrize("boundary", ["charset=utf-8", "boundary=", "boundary=" + "x" * 10_000])
def test_a_form_without_a_sensible_boundary(tmp_path: Path, boundary: str) -> None:
    with storing_server(tmp_path / "voices") as server:
        headers = {"Content-Type": f"multipart/form-data; {boundary}"}
        assert refusal(httpx.post(server.url + VOICES, content=b"--x\r\n" * 100, headers=headers))[0] == 400
        assert_alive(server)


# ---- a full disk


def test_a_full_disk_where_voices_are_kept_is_a_507(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "voices"
    with storing_server(folder) as server:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            response = upload(server)
        assert refusal(response) == (507, "store_failed", None)
        assert "No space left" in response.json()["error"]["message"]
        assert os.listdir(folder) == []
        assert_alive(server)
        assert upload(server).status_code == 200
        assert os.listdir(folder) == ["ada.safetensors"]


def test_a_full_disk_where_uploads_arrive_is_a_507(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "voices"
    with storing_server(folder) as server:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile.SpooledTemporaryFile, "rollover", full)
            response = upload(server, wav(voice_like(0, 29.0)))  # more than is kept in memory
        assert refusal(response) == (507, "store_failed", None)
        assert os.listdir(folder) == []
        assert_alive(server)


def test_too_many_open_files_where_uploads_arrive_is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with storing_server(tmp_path / "voices") as server:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile.SpooledTemporaryFile, "rollover", none_left)
            response = upload(server, wav(voice_like(0, 29.0)))
        assert refusal(response) == (503, "not_serving", None)
        assert int(response.headers["retry-after"]) >= 1
        assert_alive(server)


def test_a_folder_that_is_gone_is_a_507(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    with storing_server(folder) as server:
        folder.rmdir()
        assert refusal(upload(server)) == (507, "store_failed", None)


def full(*_: object) -> None:
    raise FULL


def upload(server: LiveServer, audio: bytes | None = None) -> httpx.Response:
    form = {"name": "ada", "consent": "I agree."}
    files = {"audio_sample": ("a.wav", recording(0) if audio is None else audio)}
    return httpx.post(server.url + VOICES, data=form, files=files, timeout=HUNG_S)


# ---- what is not logged


def test_neither_keys_nor_texts_nor_recordings_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At any level: with the right key and the wrong one, for speech that works and for bodies that do not."""
    word = "sesame"
    config = ServerConfig(api_keys=(SecretStr(f"{word}-key"),))
    with caplog.at_level(logging.DEBUG, "vivavoce_server"), storing_server(tmp_path / "voices", config) as server:
        bodies: list[dict[str, Any]] = [
            {**GOOD, "input": f"The {word}-text."},
            {**GOOD, "input": f"The {word}-text. " * 500},
            {**GOOD, "input": [f"{word}-text"]},
            {**GOOD, "instructions": f"{word}-text", "speed": 99},
            {**GOOD, "ref_audio": f"{word}-audio"},
            {**GOOD, "ref_audio": f"https://files.example/{word}-url"},
        ]
        for key in (f"{word}-key", f"{word}-wrong"):
            headers = {"Authorization": f"Bearer {key}"}
            for body in bodies:
                httpx.post(server.url + SPEECH, json=body, headers=headers)
            httpx.post(f"{server.url}{SPEECH}?api_key={key}", content=f'{{"{word}', headers={**JSON, **headers})
            form = {"name": f"{word}-name ", "consent": f"{word}-consent"}
            httpx.post(server.url + VOICES, data=form, files={"audio_sample": b"x"}, headers=headers)
    lines = [record.getMessage() + str(record.exc_text) for record in caplog.records if record.name != "httpx"]
    assert len(lines) >= 16
    assert [line for line in lines if word in line] == []
