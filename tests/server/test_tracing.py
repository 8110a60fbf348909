"""Spans of requests, as a collector of OpenTelemetry receives them, and the caller's trace in the log."""

import logging
import socket
import sys
import threading

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.datastructures import Headers
from vivavoce_server import ServerConfig
from vivavoce_server.build import VERSION
from vivavoce_server.spans import parent_of
from vivavoce_server.tracing import VARIABLES, check_tracing, endpoint_of, open_tracing

from tests.support.fleet import free_port
from tests.support.live_server import live_server
from tests.support.live_socket import dial
from tests.support.otlp_collector import attributes, collecting
from tests.support.waiting import wait_until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
TEXT = "Hello, marmalade."
BODY = {"input": TEXT, "voice": "heart", "response_format": "wav"}
SPEECH = "/v1/audio/speech"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


def seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_a_request_is_a_span_with_its_queue_first_audio_and_speech(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        with caplog.at_level(logging.INFO), live_server(config=ServerConfig(otlp_endpoint=collector.url)) as server:
            headers = {"traceparent": PARENT, "tracestate": "vendor=1", "User-Agent": "a-client/1"}
            answer = httpx.post(f"{server.url}{SPEECH}?api_key=hidden", json=BODY, headers=headers)
            assert answer.status_code == 200
        [span] = collector.named(f"POST {SPEECH}")
        found = attributes(span.attributes)
        children = {child.name: child for child in collector.children(span)}
        assert set(collector.paths) == {"/v1/traces"}
        assert collector.resources[0]["service.name"] == "vivavoce"
        assert collector.resources[0]["service.version"] == VERSION
        sent = b"".join(collector.bodies)
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, SPAN, "vendor=1")
    assert span.kind == Span.SPAN_KIND_SERVER
    assert (
        found.items()
        >= {
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.path": SPEECH,
            "http.route": SPEECH,
            "url.scheme": "http",
            "client.address": "127.0.0.1",
            "user_agent.original": "a-client/1",
            "gen_ai.operation.name": "text_to_speech",
            "gen_ai.output.type": "speech",
            "gen_ai.request.model": "fake",
            "vivavoce.voice": "heart",
            "vivavoce.format": "wav",
            "vivavoce.chars": len(TEXT),
            "vivavoce.outcome": "completed",
        }.items()
    )
    assert children.keys() == {"queue", "first_audio", "speech"}
    line = next(record.__dict__["fields"] for record in caplog.records if "fields" in record.__dict__)
    assert line["trace_id"] == TRACE
    assert seconds(children["queue"]) == pytest.approx(line["queue_wait_s"], abs=1e-4)
    assert seconds(span) == pytest.approx(line["duration_s"], abs=1e-4)
    heard_ns = children["speech"].start_time_unix_nano
    assert (heard_ns - span.start_time_unix_nano) / 1e9 == pytest.approx(line["first_audio_s"], abs=1e-4)
    assert children["queue"].end_time_unix_nano == children["first_audio"].start_time_unix_nano
    assert children["first_audio"].end_time_unix_nano == heard_ns
    assert children["speech"].end_time_unix_nano == span.end_time_unix_nano
    assert b"marmalade" not in sent
    assert b"hidden" not in sent


def test_a_refusal_and_a_fault_are_told_apart() -> None:
    with collecting() as collector:
        with live_server(config=ServerConfig(otlp_endpoint=collector.url)) as server:
            httpx.post(server.url + SPEECH, json={**BODY, "speed": 99})
            server.engine.submit = lambda request: (_ for _ in ()).throw(KeyError("x"))  # type: ignore[method-assign]
            httpx.post(server.url + SPEECH, json=BODY)
        refused, fault = sorted(collector.named(f"POST {SPEECH}"), key=lambda span: span.start_time_unix_nano)
    about = attributes(refused.attributes)
    assert (about["http.response.status_code"], about["error.type"], about["vivavoce.param"]) == (
        400,
        "invalid_value",
        "speed",
    )
    assert refused.status.code == Status.STATUS_CODE_UNSET
    assert attributes(fault.attributes)["error.type"] == "bug"
    assert fault.status.code == Status.STATUS_CODE_ERROR


async def test_an_utterance_is_a_child_of_its_connection() -> None:
    with collecting() as collector:
        with live_server(config=ServerConfig(otlp_endpoint=collector.url)) as server:
            async with dial(server, additional_headers={"traceparent": PARENT}) as live:
                await live.configure()
                await live.say(TEXT)
                await live.send("input.done")
                await live.utterance()
        [utterance] = collector.named("text_to_speech fake")
        [connection] = collector.named(f"GET {SPEECH}/stream")
        parts = {child.name for child in collector.children(utterance)}
    assert connection.trace_id.hex() == TRACE
    assert utterance.parent_span_id == connection.span_id
    assert attributes(connection.attributes)["http.response.status_code"] == 101
    assert attributes(utterance.attributes)["vivavoce.chars"] == len(TEXT)
    assert parts == {"queue", "first_audio", "speech"}


def test_a_path_that_is_nowhere_gets_no_name_of_its_own() -> None:
    with collecting() as collector:
        with live_server(config=ServerConfig(otlp_endpoint=collector.url)) as server:
            httpx.get(f"{server.url}/nothing")
            httpx.request("BREW", f"{server.url}/nothing")
        [get], [brew] = collector.named("GET"), collector.named("HTTP")
    assert attributes(get.attributes)["url.path"] == "/nothing"
    about = attributes(brew.attributes)
    assert (about["http.request.method"], about["http.request.method_original"]) == ("_OTHER", "BREW")


@pytest.mark.parametrize("state", ["away", "silent"])
def test_a_collector_that_takes_nothing_costs_no_request(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if state == "away":
            listener.close()
            port = free_port()
        else:
            port = listener.getsockname()[1]
        with live_server(config=ServerConfig(otlp_endpoint=f"http://127.0.0.1:{port}")) as server:
            assert [httpx.post(server.url + SPEECH, json=BODY).status_code for _ in range(5)] == [200] * 5
        # The server has stopped. Its thread gives up after the exporter's time-out.
        wait_until(lambda: not any("OtelBatch" in thread.name for thread in threading.enumerate()))


@pytest.mark.parametrize(
    "given",
    [
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        "é" * 40,
        "",
        "0" * 5000,
    ],
)
def test_a_malformed_traceparent_is_ignored(given: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), live_server() as server:
        headers = [(b"traceparent", given.encode()), (b"tracestate", b"a=1")]
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        wait_until(lambda: any("fields" in record.__dict__ for record in caplog.records))
    line = next(record.__dict__["fields"] for record in caplog.records if "fields" in record.__dict__)
    assert "trace_id" not in line


def test_two_parents_are_none() -> None:
    assert not parent_of(Headers(raw=[(b"traceparent", PARENT.encode())] * 2))
    assert parent_of(Headers(raw=[(b"traceparent", PARENT.encode()), (b"tracestate", b"x" * 600)]))


def test_the_trace_of_a_caller_is_in_the_line_without_a_collector(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), live_server() as server:
        httpx.get(f"{server.url}/v1/models", headers={"traceparent": PARENT})
        wait_until(lambda: any("fields" in record.__dict__ for record in caplog.records))
    line = next(record.__dict__["fields"] for record in caplog.records if "fields" in record.__dict__)
    assert line["trace_id"] == TRACE


# ---- settings


@pytest.mark.parametrize(
    ("variables", "setting", "expected"),
    [
        ({}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318/"}, None, "http://a:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/x"}, None, "http://a/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, "http://b/", "http://b/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none"}, None, None),
        ({"OTEL_SDK_DISABLED": "TRUE"}, "http://b", None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None, None),
    ],
)
def test_the_endpoint(
    variables: dict[str, str], setting: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint_of(ServerConfig(otlp_endpoint=setting)) == expected


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a", "http://", "/v1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="--otlp-endpoint: the endpoint is no http"):
        check_tracing(ServerConfig(otlp_endpoint=url))


@pytest.mark.parametrize("url", ["http://a:sesame@b", "http://b?key=sesame"])
def test_a_url_with_a_secret_is_refused(url: str) -> None:
    # The settings are logged.
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        check_tracing(ServerConfig(otlp_endpoint=url))
    assert "sesame" not in str(caught.value)


def test_without_the_extra_the_start_says_which_command_installs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"pip install 'vivavoce-speech\[otel\]'"):
        check_tracing(ServerConfig(otlp_endpoint="http://a"))
    check_tracing(ServerConfig())
    monkeypatch.setenv(VARIABLES[1], "http://a")
    check_tracing(ServerConfig())
    open_tracing(ServerConfig())
    assert "pip install 'vivavoce-speech[otel]'" in caplog.text


def test_another_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match="http/protobuf, not 'grpc'"):
        check_tracing(ServerConfig(otlp_endpoint="http://a:4317"))
