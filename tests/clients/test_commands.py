"""`vivavoce say | voices | …` as a user types them."""

import argparse
import io
import sys
import tomllib
import types
import wave
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from vivavoce_client import __main__ as command_line
from vivavoce_client.__main__ import main
from vivavoce_engine.fake_runner import tone

from tests.support.live_server import LiveServer, live_server


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def test_say_writes_a_wav_with_true_sizes(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "hello.wav"
    assert main(["say", "Hello.", "-o", str(output), "--url", server.url, "--seed", "5"]) == 0
    with wave.open(str(output)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        expected = np.rint(tone(5, 0, len("Hello.")) * 32767).astype("<i2").tobytes()
        assert file.readframes(file.getnframes()) == expected
    report = capsys.readouterr().err
    assert "first audio after" in report
    assert "0.48 s of speech, real-time factor" in report


def test_say_reads_standard_input(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_URL", server.url)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi!"))
    output = tmp_path / "hi.pcm"
    assert main(["say", "-", "-o", str(output), "--voice", "michael"]) == 0
    assert output.stat().st_size == len("Hi!") * 1920 * 2


def test_say_starts_a_server_where_none_is_named(tmp_path: Path) -> None:
    output = tmp_path / "hello.wav"
    assert main(["say", "Hello.", "-o", str(output), "--model", "fake"]) == 0
    with wave.open(str(output)) as file:
        assert file.getnframes() == len("Hello.") * 1920


def test_say_tells_why_its_server_did_not_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVAVOCE_GRACE_S", "never")
    assert main(["say", "Hello.", "-o", str(tmp_path / "x.wav"), "--model", "fake"]) == 1
    assert "before it was ready" in capfd.readouterr().err


def test_say_without_a_server_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vivavoce_client.local_server.SERVER_MODULE", "not_installed_here")
    assert main(["say", "Hello."]) == 1
    assert "vivavoce-speech[server]" in capsys.readouterr().err


def test_a_refusal_is_one_line(server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x.wav"
    assert main(["say", "Hello.", "-o", str(output), "--url", server.url, "--voice", "nobody"]) == 1
    assert "there is no voice 'nobody'" in capsys.readouterr().err.lower()
    assert not output.exists()


def test_voices_are_listed(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[:2] == ["heart", "fake"]
    assert "alloy" in lines[0]
    assert lines[0].split("\t")[3:] == ["American female", "A steady tone"]


def install_entry_point(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    entry = EntryPoint("serve", module, command_line.COMMAND_GROUP)
    monkeypatch.setattr(command_line, "entry_points", lambda group: EntryPoints([entry]).select(group=group))


def test_a_command_of_another_package_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--status", type=int)

    def run(args: argparse.Namespace) -> int:
        status: int = args.status
        return status

    module = types.ModuleType("a_command")
    module.__dict__.update(add_arguments=add_arguments, run=run)
    monkeypatch.setitem(sys.modules, "a_command", module)
    install_entry_point(monkeypatch, "a_command")
    assert main(["serve", "--status", "7"]) == 7


def test_a_command_that_is_not_installed_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_entry_point(monkeypatch, "not_installed_here")
    assert main(["serve"]) == 2
    assert "pip install 'vivavoce-speech[server]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0


def test_every_command_of_the_project_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    groups = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    assert command_line.HELP.keys() == groups["vivavoce.commands"].keys() | groups["vivavoce.bench"].keys()
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    for kind in groups["vivavoce.bench"]:
        assert f"{kind} " in shown
        assert command_line.HELP[kind] in " ".join(shown.split())
