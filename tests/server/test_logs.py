"""No client writes a line of the log, or a label of a metric, of its own."""

import json
import logging
import re
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from vivavoce_server import ServerConfig
from vivavoce_server.access import read_keys
from vivavoce_server.cli import warn_if_open
from vivavoce_server.logs import (
    MAX_FIELD_CHARS,
    TEXT_FORMAT,
    UNSAFE,
    JsonFormatter,
    RequestIdFilter,
    TextFormatter,
    for_log,
    printable,
)

from tests.support.live_server import live_server
from tests.support.server_process import serving
from tests.support.wire import exchange, handshake, request

SIGNS = (
    "\n\r\t\x00\x08\x0b\x0c\x1b\x7f\x80\x85\x9b\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
    "\ufeff\ud800\udfff\U000e0001"
)
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LINE = re.compile(TIME + r" [A-Z]+ [a-z_.]+ \[\S+\] ")
FORGED = "2026-01-01T00:00:00.000Z INFO vivavoce_server [x] FORGED"


def record_of(message: str, *args: object, trace: str | None = None) -> logging.LogRecord:
    record = logging.LogRecord("a.logger", logging.WARNING, "file", 1, message, args, None)
    record.exc_text = trace
    RequestIdFilter().filter(record)
    return record


@pytest.mark.parametrize("sign", SIGNS)
def test_every_sign_is_escaped(sign: str) -> None:
    assert re.fullmatch(r"a\\[nrtxuU0-9a-f]+b", printable(f"a{sign}b"))
    text = TextFormatter(TEXT_FORMAT).format(record_of("%s", f"a{sign}{FORGED}"))
    line = JsonFormatter().format(record_of("%s", f"a{sign}{FORGED}"))
    assert UNSAFE.search(text + line) is None
    assert line.isascii()
    assert json.loads(line)["message"] == f"a{sign}{FORGED}"


def test_what_people_write_stays() -> None:
    assert printable("Grüße, 你好 😀 שלום") == "Grüße, 你好 😀 שלום"


def test_long_fields_are_cut() -> None:
    assert for_log("a" * MAX_FIELD_CHARS) == "a" * MAX_FIELD_CHARS
    assert for_log("a" * 10_000) == "a" * MAX_FIELD_CHARS + "..."


def test_no_line_of_a_traceback_looks_like_a_record() -> None:
    try:
        raise ValueError(f"wrong\n{FORGED}\x1b[31m")
    except ValueError:
        record = record_of("a bug")
        record.exc_info = sys.exc_info()
    lines = TextFormatter(TEXT_FORMAT).format(record).split("\n")
    assert lines[0].endswith("a bug")
    assert len(lines) > 3
    assert all(line.startswith("  | ") for line in lines[1:])
    assert lines[-1] == "  | ValueError"
    assert TextFormatter(TEXT_FORMAT).format(record_of("x", trace="one\ntwo")).split("\n")[1:] == ["  | one", "  | two"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_clients_forge_no_line(tmp_path: Path, form: str) -> None:
    with serving(tmp_path, "--model", "fake", "--log-format", form) as (process, url):
        target = f"/x%0a{FORGED.replace(' ', '%20')}%1b%5b31m%e2%80%ae%c2%9b"
        for sent in (
            request("GET", target),
            request("GET", "/" + "y" * 5000),
            request("M" * 5000, "/"),
            handshake(target),
            request("GET", "/v1/models", host=f"evil{FORGED[:10]}\x9b"),
            b"GET / HTTP/1.1\n2026-01-01 FORGED\n\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03FORGED\n2026",
        ):
            exchange(url, sent)
        httpx.get(f"{url}/last")
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or "/last" not in lines[-1]:
            lines.append(process.stderr.readline())
        assert all(len(line) < 1000 for line in lines if " settings" not in line and '"settings"' not in line)
        served = lines[next(number for number, line in enumerate(lines) if "FORGED" in line) :]
        if form == "json":
            assert [json.loads(line)["logger"] for line in served]
        else:
            assert all(LINE.match(line) for line in served)
        assert not any(line.startswith(FORGED) for line in lines)
        assert UNSAFE.search("".join(lines).replace("\n", "")) is None


def test_clients_add_no_label() -> None:
    with live_server() as server, httpx.Client(base_url=server.url) as client:
        before = labels(client)
        for name in ("nothing\n", 'x"} 1\nforged{a="', "é" * 1000):
            body = {"input": "Hi!", "voice": name, "model": name, "response_format": name}
            for field in ("voice", "model", "response_format"):
                client.post("/v1/audio/speech", json={"input": "Hi!", "voice": "heart", field: name})
            client.post("/v1/audio/speech", json=body)
            client.post("/v1/audio/speech/batch", json={"items": [body]})
            client.post("/v1/text-to-speech/x%0ay", json={"text": "Hi!", "model_id": name})
            client.get("/x%0ay")
        assert labels(client) == before


def labels(client: httpx.Client) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = client.get("/metrics").text
    families = text_string_to_metric_families(text)
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({}, 0),
        ({"host": "localhost"}, 0),
        ({"host": "::1"}, 0),
        ({"host": "0.0.0.0"}, 1),
        ({"host": "::"}, 1),
        ({"host": "192.168.1.5"}, 1),
        ({"host": "0.0.0.0", "api_keys": ("k",)}, 0),
        ({"host": "0.0.0.0", "wyoming_port": 10200, "wyoming_host": "0.0.0.0"}, 2),
    ],
)
def test_a_server_that_is_open_without_keys_says_so(
    fields: dict[str, object], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig.model_validate(fields)
    warn_if_open(config, has_keys=bool(read_keys(config)))
    assert len(caplog.messages) == warnings
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert all("key" in message for message in caplog.messages)
