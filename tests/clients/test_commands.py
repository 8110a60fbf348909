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
from vivavoce_client.arguments import Parser, Switch, package_version
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


def test_the_server_of_say_has_no_key_no_prefix_and_no_other_port_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"API_KEYS": "sk-mine", "ROOT_PATH": "/speech", "WYOMING_ZEROCONF": "true", "HOST": "0.0.0.0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"VIVAVOCE_{name}", value)
    output = tmp_path / "hello.wav"
    assert main(["say", "Hello.", "-o", str(output), "--model", "fake"]) == 0
    assert output.stat().st_size > 44
    assert "open to the network" not in capfd.readouterr().err


def test_say_tells_why_its_server_did_not_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVAVOCE_GRACE_S", "never")
    assert main(["say", "Hello.", "-o", str(tmp_path / "x.wav"), "--model", "fake"]) == 1
    assert "before it was ready" in capfd.readouterr().err


def test_say_without_a_server_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vivavoce_client.local_server.NEEDED_MODULES", ("json", "not_installed_here"))
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


def test_a_command_that_lacks_a_package_when_it_runs_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ModuleNotFoundError("No module named 'not_installed_here'", name="not_installed_here.part")

    def run(args: argparse.Namespace) -> int:
        raise missing

    module = types.ModuleType("a_command")
    module.__dict__.update(add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, "a_command", module)
    install_entry_point(monkeypatch, "a_command")
    assert main(["serve"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "pip install 'vivavoce-speech[server]'" in told
    missing.name = "json.no_such_part"
    with pytest.raises(ModuleNotFoundError):
        main(["serve"])


def test_every_command_of_the_project_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    groups = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    assert command_line.HELP.keys() == groups["vivavoce.commands"].keys() | groups["vivavoce.bench"].keys()
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    for kind in groups["vivavoce.bench"]:
        assert kind in shown.split()
        assert command_line.HELP[kind] in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sya", "Hi"], "vivavoce: there is no command 'sya' among say, batch, text, verify, voices, bench, "),
        (["sya", "Hi"], "; did you mean say?"),
        (["voices", "lits"], "there is no command 'lits' among list, add, blend, delete; did you mean list?"),
        (["bench", "laod"], "; did you mean load?"),
        (["say", "Hi", "--sped", "2"], "vivavoce say: there is no option --sped; did you mean --speed?"),
        (["say", "Hi", "--spee=2"], "vivavoce say: there is no option --spee; did you mean --speed?"),
        (["say", "Hi", "--zzzzzz"], "vivavoce say: there is no option --zzzzzz; vivavoce say --help lists all"),
        (["say", "Hi", "there"], "vivavoce say: there is nothing to do with 'there'"),
        (["say", "Hi", "--format", "mp4"], "--format: there is no choice 'mp4' among aac, flac, "),
        (["say"], "vivavoce say: one of the arguments text --segments is required"),
        (["say", "Hi", "--speed", "fast"], "vivavoce say: argument --speed: 'fast' is not a number"),
        (["voices", "add", "me", "--cosent", "x"], "--consent"),
        (["serve", "--prot", "1"], "vivavoce serve: there is no option --prot; did you mean --port?"),
        (["doctor", "--josn"], "vivavoce doctor: there is no option --josn; did you mean --json?"),
        ([], "vivavoce: the following arguments are required: COMMAND"),
    ],
)  # fmt: skip
def test_a_typing_error_is_told_in_a_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["", "say", "text", "voices", "voices add", "bench", "bench load", "serve", "doctor", "eval"]
)
def test_every_command_tells_its_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"vivavoce {package_version()}\n"


def test_the_help_of_serve_has_groups_choices_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for line in (
        "usage: vivavoce serve [OPTIONS]",
        "network:",
        "  --eager, --no-eager ",
        "  --runner {auto,triton,native,torch}",
        "  --port N              Port to listen on. 0 selects a free one. [8000]",
        "  --stall-s SECONDS ",
    ):
        assert f"\n{line}" in f"\n{shown}"
    assert "[()]" not in shown
    assert "[None]" not in shown
    assert "other settings" not in shown


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (["--eager"], "true"),
        (["--no-eager"], "false"),
        (["--eager", "false"], "false"),
        (["--eager=off", "--port", "1"], "off"),
        (["--eager", "--port", "1"], "true"),
    ],
)
def test_a_switch_takes_a_word_or_none(words: list[str], value: str | None) -> None:
    parser = Parser()
    parser.add_argument("--eager", action=Switch)
    parser.add_argument("--port")
    assert parser.parse_args(words).eager == value
