"""Request ids and log lines."""

import json
import logging
import sys

import httpx
import pytest
from vivavoce_server.logs import JsonFormatter, RequestIdFilter, request_id

from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.waiting import wait_until

BODY = {"input": "Hello.", "voice": "heart"}


def test_a_given_id_is_returned_on_every_answer(server: LiveServer) -> None:
    headers = {"X-Request-ID": "abc-123"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        for response in (
            client.get("/health"),
            client.post("/v1/audio/speech", json=BODY),
            client.post("/v1/audio/speech", json={}),
            client.get("/nothing"),
        ):
            assert response.headers["x-request-id"] == "abc-123"


@pytest.mark.parametrize("given", ["", "a" * 129, "with space", 'quote"', "<b>"])
def test_what_is_no_id_is_replaced(server: LiveServer, given: str) -> None:
    returned = httpx.get(f"{server.url}/health", headers={"X-Request-ID": given}).headers["x-request-id"]
    assert len(returned) == 32
    assert returned != given


def test_each_request_has_an_id_of_its_own(server: LiveServer) -> None:
    ids = {httpx.get(f"{server.url}/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_every_line_of_a_request_carries_its_id(caplog: pytest.LogCaptureFixture) -> None:
    engine = fake_engine()
    with live_server(engine) as server, caplog.at_level(logging.INFO, "vivavoce_server"):
        caplog.handler.addFilter(RequestIdFilter())
        engine.submit = lambda request: (_ for _ in ()).throw(KeyError("secret"))  # type: ignore[method-assign]
        response = httpx.post(f"{server.url}/v1/audio/speech", json=BODY, headers={"X-Request-ID": "me"})
        # The last line is written when the response has already gone out.
        wait_until(lambda: any(record.name == "vivavoce_server.request_lines" for record in caplog.records))
    assert (response.status_code, response.headers["x-request-id"]) == (500, "me")
    names = ("vivavoce_server.context", "vivavoce_server.request_lines")
    lines = [record for record in caplog.records if record.name in names]
    assert [record.__dict__["request_id"] for record in lines] == ["me", "me"]
    assert lines[0].exc_info is not None
    assert isinstance(lines[0].exc_info[1], KeyError)
    assert lines[1].levelno == logging.WARNING
    assert lines[1].__dict__["fields"].items() >= {"method": "POST", "path": "/v1/audio/speech", "status": 500}.items()


def test_json_lines() -> None:
    record = logging.LogRecord("a.logger", logging.WARNING, "file", 1, "%s and %s", ("one", "two"), None)
    record.fields = {"status": 200}
    token = request_id.set("me")
    RequestIdFilter().filter(record)
    request_id.reset(token)
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time")
    assert line == {
        "level": "WARNING",
        "logger": "a.logger",
        "message": "one and two",
        "request_id": "me",
        "status": 200,
    }


def test_json_lines_hold_the_traceback_without_messages() -> None:
    try:
        raise KeyError("a text")
    except KeyError:
        record = logging.LogRecord("a", logging.ERROR, "file", 1, "bad", None, sys.exc_info())
    RequestIdFilter().filter(record)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    trace = json.loads(line)["exception"]
    assert trace.startswith("Traceback (most recent call last):")
    assert 'raise KeyError("a text")' in trace  # the line of the source
    assert trace.endswith("\nKeyError")
