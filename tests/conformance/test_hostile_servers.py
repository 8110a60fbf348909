"""Findings about a server that is silent, broken or away: in bounded time, and never a traceback."""

import argparse
import asyncio
import io
import json
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from vivavoce_conformance import cli, target
from vivavoce_conformance.checks import CHECKS
from vivavoce_conformance.rules import Check, Finding
from vivavoce_conformance.runner import MAX_SILENT, run_suite
from vivavoce_conformance.target import Target

from tests.support.faulty_server import faulty_server, served

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHECK = {check.id: check for check in CHECKS}
PLAIN = [CHECK["requests.plain"]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\n"


def findings_of(url: str, checks: Sequence[Check], timeout_s: float = 20.0, total_s: float = 600.0) -> list[Finding]:
    server = Target(f"{url}/v1", "tts-1", "alloy", None, timeout_s)
    return asyncio.run(run_suite(server, checks, total_s, lambda finding: None))


def answering(content: bytes) -> Handler:
    """A server that answers every request with these bytes, and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(
            rb"content-length: (\d+)", head.lower()
        ):  # what is left unread would reset the connection
            await reader.readexactly(int(length[1]))
        writer.write(content)
        writer.close()

    return handle


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(2**16):
        pass
    writer.close()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server whose speech never ends."""
    await reader.readuntil(b"\r\n\r\n")
    try:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(2**16) + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def test_a_server_that_is_not_there_ends_the_run(unused_tcp_port_factory: Callable[[], int]) -> None:
    findings = findings_of(f"http://127.0.0.1:{unused_tcp_port_factory()}", CHECKS)
    assert {finding.outcome for finding in findings} == {"failed"}
    assert all("cannot connect" in finding.reason for finding in findings[:MAX_SILENT])
    assert {finding.reason for finding in findings[MAX_SILENT:]} == {"not run: 3 checks in a row had no answer"}


def test_a_silent_server_ends_the_run() -> None:
    with served(silent) as url:
        findings = findings_of(url, CHECKS, timeout_s=0.2)
    assert [finding.reason for finding in findings[:MAX_SILENT]] == ["no complete answer within 0.2 s"] * MAX_SILENT
    assert {finding.reason for finding in findings[MAX_SILENT:]} == {"not run: 3 checks in a row had no answer"}


def test_the_run_as_a_whole_has_a_limit() -> None:
    with served(silent) as url:
        first, second = findings_of(url, PLAIN * 2, timeout_s=60.0, total_s=0.2)
    assert (first.outcome, second.reason) == ("failed", "not run: the 0.2 s for all checks are over")


def test_an_endless_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "MAX_BODY_BYTES", 2**20)
    with served(endless) as url:
        (finding,) = findings_of(url, PLAIN)
    assert finding.reason == "the answer is longer than 1 MiB"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the connection ended, or carried what is no HTTP"),
        (b"\x16\x03\x01\x02\x00 garbage\r\n\r\n", "the connection ended, or carried what is no HTTP"),
        (HEAD + b"Content-Length: 9\r\n\r\nhalf", "the connection ended, or carried what is no HTTP"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "the connection ended, or carried what is no HTTP"),
        (HEAD + b"Content-Length: 0\r\n\r\n", "status 200 with an empty body"),
        (b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n", "status 302 instead of 200"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "the server wants a key, which --key gives"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 8\r\n\r\n\x1b[31mred", "status 500 instead of 200: [31mred"),
    ],
)
def test_broken_answers_are_findings(content: bytes, reason: str) -> None:
    with served(answering(content)) as url:
        (finding,) = findings_of(url, PLAIN)
    assert reason in finding.reason
    assert finding.outcome == "failed"
    assert finding.reason.isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        HEAD + b"Content-Length: 4\r\n\r\n\xff\xfb\x00\x00",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 404 No\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n" + b'{"error":null}',
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: 5\n\n",
    ],
)
def test_no_check_stumbles_over_an_odd_answer(content: bytes) -> None:
    with served(answering(content)) as url:
        findings = findings_of(url, CHECKS)
    assert [one for one in findings if "cannot be judged" in one.reason] == []


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.run(parser.parse_args(arguments))
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("arguments", [("ftp://host",), ("http://",), ("no url",), (), ("http://[",)])
def test_an_address_that_is_none_is_said_in_one_line(arguments: tuple[str, ...]) -> None:
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_an_unknown_check_is_named() -> None:
    assert run("http://localhost", "--only", "requests,nothing") == (
        2,
        "",
        "vivavoce conformance: no check or group is called nothing; --list shows them\n",
    )


def test_the_exit_status_tells_a_broken_must_and_strictly_a_broken_should() -> None:
    with faulty_server("headers.request_id") as url:
        assert run(url, "--only", "headers.request_id,models.listing")[0] == 0
        status, out, _ = run(url, "--only", "headers.request_id,models.listing", "--strict")
        assert status == 1
        assert "FAILED  should" in out
    with faulty_server("models.listing") as url:
        assert run(url, "--only", "models.listing")[0] == 1


def test_json_junit_and_badge_tell_the_same(tmp_path: Path) -> None:
    files = ("--junit", str(tmp_path / "junit.xml"), "--badge", str(tmp_path / "badge.svg"))
    with faulty_server("headers.request_id") as url:
        status, out, _ = run(url, "--only", "headers.request_id,models,voices", "--json", "--strict", *files)
    told = json.loads(out)
    assert status == 1
    assert told["counts"]["should"] == {"passed": 3, "failed": 1, "skipped": 0}
    assert {check["id"] for check in told["checks"] if check["outcome"] == "failed"} == {"headers.request_id"}
    suite = xml.fromstring((tmp_path / "junit.xml").read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(told["checks"])), "1", "0")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == [
        "request_id: speech, lists and errors have an x-request-id"
    ]
    badge = xml.fromstring((tmp_path / "badge.svg").read_text())
    assert badge.get("aria-label") == "speech API: 2 of 2 rules kept"


def test_a_key_of_the_environment_goes_to_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    keys = {
        url: cli.target_of(parser.parse_args([url])).key for url in ("http://host:8000", "https://api.openai.com/v1")
    }
    assert keys == {"http://host:8000": None, "https://api.openai.com/v1": "secret"}


def test_a_path_is_taken_as_it_is_and_an_address_without_one_gets_v1() -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    bases = [
        cli.target_of(parser.parse_args([url])).base for url in ("http://h:1", "http://h:1/", "http://h/openai/v1/")
    ]
    assert bases == ["http://h:1/v1", "http://h:1/v1", "http://h/openai/v1"]


def test_events_that_openai_does_not_have_either_are_no_fault() -> None:
    with faulty_server("streaming.sse") as url:
        out = run(url, "--only", "streaming.sse", "--model", "tts-1")[1]
        assert "skipped should" in out
        assert "FAILED  should" in run(url, "--only", "streaming.sse", "--model", "gpt-4o-mini-tts")[1]


def test_letters_that_the_terminal_does_not_have_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    content = b"HTTP/1.1 500 No\r\nContent-Length: 6\r\n\r\n" + "Fuß!!".encode()
    with served(answering(content)) as url:
        assert cli.run(parser.parse_args([url, "--only", "requests.plain"])) == 1
    terminal.flush()
    assert b"Fu\\xdf!!" in terminal.buffer.getvalue()


def test_a_reason_is_short_however_much_a_server_says() -> None:
    body = b"".join(b'data: {"type": "odd%d"}\n\n' % number for number in range(1000))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    with served(answering(head + body)) as url:
        (finding,) = findings_of(url, [CHECK["streaming.sse_types"]])
    assert finding.outcome == "failed"
    assert len(finding.reason) <= 500
