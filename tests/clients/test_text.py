"""`vivavoce text`: what a server would say, printed."""

import io
import json
import sys
from collections.abc import Iterator

import pytest
from vivavoce_client.__main__ import main

from tests.support.live_server import LiveServer, live_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    with live_server() as running:
        monkeypatch.setenv("VIVAVOCE_URL", running.url)
        yield running


def test_it_prints_what_would_be_said(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "This is **bold**. [pause:500ms] And *this*."]) == 0
    shown = capsys.readouterr()
    assert shown.out == "This is bold. [pause:0.5s] And this.\n"
    assert shown.err == ""


def test_it_reads_standard_input(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["text"], ["text", "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("This is **bold**.\n"))
        assert main(arguments) == 0
        assert capsys.readouterr().out == "This is bold.\n"


def test_normalize_false_shows_the_text_as_written(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "This is **bold**.", "--normalize", "false"]) == 0
    assert capsys.readouterr().out == "This is **bold**.\n"


def test_json_is_the_whole_answer(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "It is **bold**.", "--normalize", "markdown", "--language", "english", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "It is bold."
    assert answer["parts"] == [{"text": "It is bold."}]
    assert answer["stages"] == ["markup"]
    assert answer["characters"] == {"input": 15, "output": 11}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["..."], "nothing"),
        (["Hello.", "--normalize", "numbers,colours"], "colours"),
        (["Hello.", "--model", "nobody"], "nobody"),
        (["Hello.", "--url", "http://127.0.0.1:9"], "no server answers"),
    ],
)
def test_a_refusal_is_one_line(
    server: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["text", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err.lower()
    assert shown.err.startswith("vivavoce: ")
    assert shown.err.count("\n") == 1
