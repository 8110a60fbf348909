"""`vivavoce doctor` on planted faults: findings, report, exit status, and nothing of the user in the JSON."""

import argparse
import getpass
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vivavoce_engine import EngineConfig, Finding
from vivavoce_server import ServerConfig, doctor
from vivavoce_server.containers import PcmEncoder
from vivavoce_server.doctor import (
    attempt,
    check_codecs,
    check_keys,
    check_port,
    check_settings,
    check_text,
    check_voices_dir,
    document,
    examine,
    show,
    without_user,
)
from vivavoce_server.formats import FORMATS, AudioFormat

KEY = "sk-very-secret"
FLAGS = {"model": ["fake"], "port": "0", "max_voices": "0"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("VIVAVOCE_"):
            monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    status = doctor.run(parser.parse_args(arguments))
    return status, capsys.readouterr().out


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def occupied() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.listen()
    return listener


# ---- the command


def test_a_machine_that_speaks_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The shipped voice on the CPU, and everything else that is here."""
    status, out = run(capsys, "--json", "--device", "cpu", "--port", "0", "--voices-dir", str(tmp_path / "voices"))
    assert status == 0, out
    told = json.loads(out)
    assert told.keys() == {"vivavoce", "python", "platform", "findings"}
    assert told["vivavoce"] == version("vivavoce-speech")
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    for finding in told["findings"]:
        assert finding.keys() == {"name", "state", "text", "mend"}
        assert finding["state"] in ("ok", "warning")
        assert finding["text"].endswith(".")
    names = [finding["name"] for finding in told["findings"]]
    assert names == [
        "settings",
        "system",
        "torch",
        "runner",
        "model",
        "rows",
        "speed",
        "speed",
        "codecs",
        "text",
        "voices",
        "port",
        "keys",
    ]
    assert not (tmp_path / "voices").exists()


def test_an_error_is_status_1_with_its_command_below(capsys: pytest.CaptureFixture[str]) -> None:
    with occupied() as listener:
        port = listener.getsockname()[1]
        status, out = run(capsys, "--model", "fake", "--device", "cpu", "--port", str(port), "--max-voices", "0")
    assert status == 1
    lines = out.splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("error")]
    assert f"127.0.0.1:{port}: Address already in use" in lines[number]
    assert lines[number + 1].strip().startswith("mend: vivavoce serve --port ")
    assert lines[-1] == "1 error; `vivavoce serve` would not work as it should"
    assert "\x1b" not in out
    starts = {line.index(line.split(maxsplit=2)[2]) for line in lines[:-1] if line.split()[0] in ("ok", "error")}
    assert len(starts) == 1, "the sentences are aligned"


def test_a_warning_is_status_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slow = Finding("card", "warning", "It is slow.")
    monkeypatch.setattr(doctor, "checks", lambda *_, **__: [("card", lambda: [slow])])
    status, out = run(capsys, "--model", "fake", "--port", "0", "--max-voices", "0")
    assert status == 0
    assert out.splitlines()[-1] == "1 warning; `vivavoce serve` would start"


def test_a_terminal_gets_colors_and_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("shutil.get_terminal_size", lambda: SimpleNamespace(columns=60))
    monkeypatch.delenv("NO_COLOR", raising=False)
    long = Finding("card", "error", "word " * 40, "mend " * 40)
    out = Terminal()
    show([long], out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("\x1b[31merror\x1b[0m  card  word")
    assert max(len(line) for line in lines[1:-2]) <= 60
    assert lines[-2].count("mend ") == 40, "a command is one line, to be copied"
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show([long], out)
    assert "\x1b" not in out.getvalue()


# ---- no check ends the command


def test_a_check_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(doctor, "checks", lambda *_, **__: [("card", broken)])
    findings = {each.name: each for each in examine(FLAGS, launches=False)}
    assert findings["card"] == Finding("card", "error", "The check itself failed: ZeroDivisionError: by nothing.")
    assert findings["keys"].state == "ok", "the others go on"


def test_a_check_that_hangs_is_left_behind() -> None:
    released = threading.Event()

    def hangs() -> list[Finding]:
        released.wait()
        return []

    found = only(attempt("voices", hangs, 0.01))
    released.set()
    assert (found.name, found.state, found.text) == ("voices", "error", "The check did not end within 0.01 s.")


# ---- planted faults


def test_an_unknown_variable_is_named_with_one_that_is_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_MAX_STREMS", "3")
    found, config, _ = check_settings({})
    assert (found.state, found.mend) == ("error", "unset VIVAVOCE_MAX_STREMS")
    assert "VIVAVOCE_MAX_STREMS is not a setting of Vivavoce; did you mean VIVAVOCE_MAX_STREAMS?" in found.text
    assert config == ServerConfig()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("VIVAVOCE_PORT", KEY, "VIVAVOCE_PORT must be a whole number"),
        ("VIVAVOCE_DEVICE", "rocm", "VIVAVOCE_DEVICE must be auto, cpu, cuda or cuda:N"),
        ("VIVAVOCE_MAX_STREAMS", "0", "VIVAVOCE_MAX_STREAMS must be"),
    ],
)
def test_wrong_settings_are_named_without_their_values(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    found, _, _ = check_settings({})
    assert found.state == "error"
    assert message in found.text
    assert KEY not in found.text


def test_the_environments_settings_are_listed_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_API_KEYS", KEY)
    found, config, _ = check_settings({})
    assert found == Finding("settings", "ok", "The settings are right; of the environment: VIVAVOCE_API_KEYS.")
    assert len(config.api_keys) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_cannot_be_encoded_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Fails(PcmEncoder):
        def feed(self, pcm: Any) -> bytes:
            raise ValueError("no such codec")

    class Empty(PcmEncoder):
        def feed(self, pcm: Any) -> bytes:
            assert pcm.dtype == np.float32
            return b""

    assert only(check_codecs()).state == "ok"
    for encoder, told in ((Fails, "cannot be encoded: ValueError: no such codec"), (Empty, f"is no {name} file")):
        monkeypatch.setitem(FORMATS, name, AudioFormat("audio/x", encoder))  # type: ignore[misc]
        found = only(check_codecs())
        assert (found.state, found.mend.endswith("-m pip install --force-reinstall av")) == ("error", True)
        assert name in found.text
        assert told in found.text


def test_a_missing_package_of_a_stage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(check_text()).state == "ok"
    monkeypatch.setattr(doctor, "missing_packages", lambda: {"wetext": "numbers stay"})
    found = only(check_text())
    assert (found.state, found.text, found.mend) == (
        "warning",
        "The package wetext is missing: numbers stay.",
        "pip install wetext",
    )


def test_a_port_in_use_is_named_with_one_that_is_free() -> None:
    with occupied() as listener:
        port = listener.getsockname()[1]
        found = only(check_port("127.0.0.1", port))
        assert found.state == "error"
        other = int(found.mend.removeprefix("vivavoce serve --port "))
        assert only(check_port("127.0.0.1", other)).state == "ok"
    assert only(check_port("127.0.0.1", port)).text == f"127.0.0.1:{port} is free."
    assert only(check_port("127.0.0.1", 0)).text == "A free port of 127.0.0.1 will be taken."


def test_a_host_of_another_machine_is_refused() -> None:
    found = only(check_port("192.0.2.1", 8000))  # an address for documentation, which no machine has
    assert (found.state, found.mend) == ("error", "vivavoce serve --host 127.0.0.1")


def test_a_folder_that_the_operator_named_must_work_and_the_default_need_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    assert only(check_voices_dir(ServerConfig(voices_dir=folder))).state == "error"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    assert only(check_voices_dir(ServerConfig())).state == "warning"
    assert only(check_voices_dir(ServerConfig(max_voices=0))).text == "The settings store no voices."

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(doctor, "default_voices_dir", no_home)
    found = only(check_voices_dir(ServerConfig()))
    assert (found.state, found.mend) == ("warning", "vivavoce serve --voices-dir FOLDER")


def test_a_file_of_keys_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[alice]\nkey = "{KEY}"\n')
    path.chmod(0o644)
    config = ServerConfig(api_keys_file=path)
    found = only(check_keys(config))
    assert (found.state, found.mend) == ("warning", f"chmod 600 {path}")
    path.chmod(0o600)
    assert only(check_keys(config)) == Finding("keys", "ok", "1 API key is set.")
    path.write_text(f'[alice]\nkey = "{KEY}"\nlimit = 3\n')
    found = only(check_keys(config))
    assert found.state == "error"
    assert KEY not in found.text
    assert only(check_keys(ServerConfig())).text == "No API key is set, so everybody who reaches 127.0.0.1 may speak."
    path.unlink()
    assert only(check_keys(config)).state == "error"


# ---- the report is fit to be published


def test_the_json_names_no_key_no_user_and_no_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home = tmp_path / "homes" / "zdenka"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "zdenka")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("VIVAVOCE_API_KEYS", KEY)
    keys = home / "keys.toml"
    keys.write_text('[bob]\nkey = "sk-other"\n')
    keys.chmod(0o644)
    status, out = run(
        capsys, "--json", "--model", str(home / "no model"), "--model", "/srv/zdenka/other", "--port", "0",
        "--device", "cpu", "--api-keys-file", str(keys),
    )  # fmt: skip
    assert status == 1
    for secret in (KEY, "sk-other", "zdenka", "bob", str(tmp_path / "homes")):
        assert secret not in out
    texts = [finding["text"] for finding in json.loads(out)["findings"]]
    assert any("~/no model" in text for text in texts)
    assert any("/srv/USER/other" in text for text in texts)
    assert "chmod 600 ~/keys.toml" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/carl/model is gone", "/home/USER/model is gone"),
        ("/Users/carl: no", "/Users/USER: no"),
        ("/opt/vivavoce/bin", "/opt/vivavoce/bin"),
    ],
)
def test_homes_of_others_are_hidden_too(text: str, shown: str) -> None:
    assert without_user(text) == shown


def test_a_user_without_name_and_home_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(Path, "home", homeless)
    told = document([Finding("model", "ok", "/models/x is complete.")])
    assert told["findings"][0]["text"] == "/models/x is complete."


def test_every_check_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding of `attempt` has the name of its check, so names have to be those of the findings."""
    checks: list[tuple[str, Callable[[], list[Finding]]]] = doctor.all_checks(
        ServerConfig(max_voices=0, port=0), EngineConfig(device="cpu"), launches=False
    )
    names = {name for name, _ in checks}
    assert names == {
        "system",
        "card",
        "runner",
        "kernels",
        "model",
        "rows",
        "speed",
        "codecs",
        "text",
        "voices",
        "port",
        "keys",
    }


def test_a_missing_voice_is_an_error_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vivavoce_voice", None)  # as if it were not installed
    names = [name for name, _ in doctor.all_checks(ServerConfig(), EngineConfig(device="cpu"), launches=False)]
    assert names[0] == "model"
    assert doctor.tell_missing_voice()[0].mend == "pip install vivavoce-voice"
    named = ServerConfig(model=("fake",))
    others = [name for name, _ in doctor.all_checks(named, EngineConfig(device="cpu"), launches=False)]
    assert len(others) == len(names) - 1
