"""All that a real server prints, from its start to SIGTERM: one record a line, in UTC, without texts and keys."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.support import noisy_server
from tests.support.fleet import free_port
from tests.support.noisy_server import BUG, CALLBACK, FINALIZER, PRINTED, STRAY, THREAD
from tests.support.server_process import serving, url_of
from tests.support.waiting import HUNG_S, wait_until
from tests.support.wire import connected, exchange, received, request

MARK = "marmalade"
KEY, WRONG = "sk-hidden", "sk-mistaken"
SPEECH = "/v1/audio/speech"
TEXT = f"Some {MARK}, please."
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FAULTS = ("a bug ends a thread", "a bug in a finalizer", "a bug: Exception", "a bug: Task exception", "ExceptionGroup")
LINE = re.compile(TIME.pattern + r" [A-Z]+ [a-z_.]+ \[\S+\] \S")


def spoken_and_refused() -> list[tuple[str, Any]]:
    """Paths, and bodies with the text in every field that can hold one."""
    good = {"input": TEXT, "voice": "heart", "response_format": "wav"}
    wrong: tuple[dict[str, Any], ...] = (
        {"speed": 99},
        {"voice": "nobody"},
        {"model": "none"},
        {TEXT: 1},
        {"input": [TEXT]},
        {"input": TEXT * 500},
        {"input": f"{TEXT} [pause:{MARK}]"},
        {"input": f"\ud800{TEXT}"},
        {"instructions": TEXT},
        {"ref_audio": TEXT, "ref_text": TEXT},
        {"ref_text": TEXT},
        {"return": "text"},
        {"stream_format": "sse"},
        {"stream": False},
    )
    eleven = "/v1/text-to-speech/heart"
    paths = (eleven, f"{eleven}/stream", f"{eleven}/with-timestamps", f"{eleven}/stream/with-timestamps")
    return [
        (SPEECH, good),
        *((SPEECH, {**good, **fields}) for fields in wrong),
        (f"{SPEECH}/batch", {"items": [good, {**good, "voice": "nobody"}, {**good, TEXT: 1}]}),
        (f"{SPEECH}/batch", {"items": [good, {**good, "voice": "nobody"}]}),
        *((path, {"text": TEXT}) for path in paths),
        *((path, {"text": [TEXT]}) for path in paths),
        *((SPEECH, {**good, "input": f"{TEXT} {fault}"}) for fault in (BUG, STRAY, THREAD, FINALIZER, CALLBACK)),
    ]


def ask_over_http(url: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=HUNG_S) as client:
        for path, body in spoken_and_refused():
            content = json.dumps(body)
            kind = {"Content-Type": "application/json"}
            client.post(path, content=content, headers=kind)
            client.post(f"{path}?text={MARK}", content=content[:-1], headers=kind)
        client.post(SPEECH, json={"input": TEXT}, headers={"Authorization": f"Bearer {WRONG}"})
        client.post(f"{SPEECH}?api_key={KEY}", json={"input": TEXT}, headers={"xi-api-key": WRONG})
        form = {"name": "a name", "consent": TEXT, "ref_text": TEXT}
        client.post("/v1/audio/voices", data=form, files={"audio_sample": TEXT.encode()})
        client.get("/v1/models", headers={"User-Agent": "\x7f\x1b[31m", "traceparent": "x"})
    body = json.dumps({"input": TEXT}).encode()
    head = ("Content-Type: application/json", f"Authorization: Bearer {KEY}")
    for sent in (
        request("POST", SPEECH, *head, body=body) + TEXT.encode() + b"\r\n\r\n",
        request("POST", SPEECH, *head, "Content-Length: 5", body=body),
        TEXT.encode() + b"\r\n\r\n",
        f"GET / HTTP/1.1\r\n{TEXT}\r\nAuthorization: Bearer {KEY}\x00\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\x00\r\n\r\n".encode(),
    ):
        with connected(url) as client:
            client.sendall(sent)
            client.shutdown(1)
            received(client)
    exchange(url, b"GET / HTTP/1.0\r\n\r\n")


def messages() -> dict[str, tuple[dict[str, Any] | str, ...]]:
    """Address of each socket → what is sent on it."""
    eleven = "/v1/text-to-speech/heart"
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    live: tuple[dict[str, Any] | str, ...] = (
        {"type": "session.config", "voice": "heart", "instructions": TEXT},
        {"type": "input.text", "text": TEXT},
        {"type": "input.text", TEXT: TEXT},
        {"type": "input.done"},
        {"type": "session.config", "voice": "nobody"},
        {"type": "input.text", "text": f"{TEXT} {BUG}"},
    )
    return {
        f"{SPEECH}/stream": live,
        f"{SPEECH}/stream?x={MARK}": (TEXT,),
        f"{eleven}/stream-input": ({"text": " "}, {"text": f"{TEXT} ", "flush": True}, {"text": ""}),
        f"{eleven}/stream-input?model_id=none": ({"text": f"{TEXT} "}, {"text": [TEXT]}),
        f"{eleven}/multi-stream-input": ({"text": f"{TEXT} ", "flush": True}, {"text": [TEXT]}, {"close_socket": True}),
        "/v1/realtime": (
            {"type": "session.update", "session": {"type": "realtime", "instructions": TEXT}},
            {"type": "response.create", "response": {"input": [item]}},
            {"type": "response.create", "response": {"input": TEXT}},
            {"type": TEXT},
            TEXT,
        ),
        f"/v1/{MARK[:3]}": (),
    }


async def ask_over_sockets(url: str) -> None:
    base = url.replace("http", "ws")
    for key in (KEY, WRONG):
        for path, sent in messages().items():
            with suppress(WebSocketException):
                headers = {"xi-api-key": key, "Authorization": f"Bearer {key}"}
                async with connect(base + path, proxy=None, additional_headers=headers) as socket:
                    for message in sent:
                        await socket.send(message if isinstance(message, str) else json.dumps(message))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            while True:
                                await socket.recv()


async def ask_wyoming(port: int) -> None:
    for sent in (
        json.dumps({"type": "synthesize", "data": {"text": TEXT}}),
        json.dumps({"type": "synthesize", "data": {"text": [TEXT]}}),
        json.dumps({"type": "synthesize", "data": {"text": f"{TEXT} {BUG}"}}),
        TEXT,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode() + b"\n")
        await writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await reader.read()
        writer.close()


def run_server(folder: Path, form: str) -> tuple[str, str]:
    """Everything that a server prints on stdout and stderr while it is asked for all kinds of things."""
    address, out, err = folder / "address", folder / "stdout", folder / "stderr"
    port = free_port()
    flags = ["--model", "fake", "--port", "0", "--address-file", str(address), "--log-format", form]
    flags += ["--log-level", "debug", "--api-keys", KEY, "--voices-dir", str(folder / "voices")]
    flags += ["--wyoming-port", str(port)]
    command = [sys.executable, str(noisy_server.__file__), *flags]
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True)
    try:
        url = url_of(process, address)
        ask_over_http(url)
        asyncio.run(ask_over_sockets(url))
        asyncio.run(ask_wyoming(port))
        wait_until(lambda: all(words in err.read_text(errors="replace") for words in FAULTS))
        process.send_signal(signal.SIGTERM)
        assert process.wait(HUNG_S) == 0
    finally:
        process.kill()
        process.wait()
    return out.read_text(errors="replace"), err.read_text(errors="replace")


def check_secrets(printed: str) -> None:
    assert [line for line in printed.splitlines() if MARK in line or KEY in line or WRONG in line] == []


def test_json_has_one_object_a_line(tmp_path: Path) -> None:
    out, err = run_server(tmp_path, "json")
    check_secrets(out + err)
    records = [json.loads(line) for line in (out + err).splitlines()]
    assert all(isinstance(record, dict) for record in records)
    for record in records:
        assert list(record)[:5] == ["time", "level", "logger", "message", "request_id"]
        assert TIME.fullmatch(record["time"])
    said = {record["message"]: record for record in records}
    assert said[PRINTED[0]]["logger"] == said[PRINTED[2]]["logger"] == "stdout"
    assert said[f"{PRINTED[0]} to stderr"]["logger"] == said[PRINTED[1]]["logger"] == "stderr"
    [warned] = [record for record in records if record["logger"] == "py.warnings"]
    assert (warned["level"], warned["category"]) == ("WARNING", "UserWarning")
    assert warned["message"].endswith(f"{PRINTED[3]}\nin two lines, by 100 %")
    settings = said["settings"]["settings"]
    assert (settings["log_level"], settings["api_keys"], settings["max_queue"]) == ("debug", ["**********"], 64)
    bugs = [record for record in records if "exception" in record]
    assert {record["message"] for record in bugs} >= {
        "a bug",
        "a bug ends a thread",
        "a bug in a finalizer",
        "a bug: Exception",
        "a bug: Task exception was never retrieved",
    }
    grouped = next(record["exception"] for record in bugs if "ExceptionGroup" in record["exception"])
    assert grouped.count("Traceback (most recent call last):") == 3
    assert "\nValueError\n" in grouped
    assert grouped.endswith("\nRuntimeError")
    assert {record["logger"] for record in records} >= {"vivavoce_engine.runtime", "vivavoce_server.draining"}
    assert {record.get("event") for record in records} >= {"request", "item", "connection", "utterance", "error"}


def test_text_has_one_record_a_line(tmp_path: Path) -> None:
    _, err = run_server(tmp_path, "text")
    check_secrets(err)
    printed = ("loading and warming up", "  ... loading", *PRINTED, "with a second line")
    records = [line for line in err.splitlines() if not line.startswith((*printed, "  | "))]
    assert [line for line in records if not LINE.match(line)] == []
    assert any(" settings settings=" in line for line in records)


@pytest.mark.parametrize("level", ["error", "warning"])
def test_a_level_leaves_the_rest_out(tmp_path: Path, level: str) -> None:
    with serving(tmp_path, "--model", "fake", "--log-level", level, "--log-format", "json") as (process, url):
        httpx.get(f"{url}/v1/models")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HUNG_S)
    levels = {record["level"] for record in map(json.loads, err.splitlines()) if record["logger"] != "stderr"}
    assert levels <= {"WARNING", "ERROR"}


def test_a_log_that_nobody_reads_costs_no_request(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--log-format", "json") as (process, url):
        assert process.stderr is not None
        process.stderr.close()
        good = {"input": "Hello.", "voice": "heart"}
        assert [httpx.post(url + SPEECH, json=good).status_code for _ in range(3)] == [200, 200, 200]
        process.send_signal(signal.SIGTERM)
        assert process.wait(HUNG_S) == 0
