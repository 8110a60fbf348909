"""`vivavoce doctor` about the parts of a server that only some settings turn on."""

import socket
import sys
from pathlib import Path

import pytest
from vivavoce_engine import EngineConfig, Finding
from vivavoce_engine.voices import recognizer
from vivavoce_server import ServerConfig, doctor, doctor_parts
from vivavoce_server.doctor_parts import check_judge, checks_of_parts

from tests.support.certificates import make_pair


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def findings(config: ServerConfig) -> dict[str, Finding]:
    """Name → the one finding of a check."""
    found = [finding for _, check in checks_of_parts(config) for finding in check()]
    return {finding.name: finding for finding in found}


def test_a_server_without_such_settings_has_nothing_to_check() -> None:
    assert checks_of_parts(ServerConfig()) == []


@pytest.mark.parametrize(("fronts", "state"), [(2, "ok"), (4, "ok"), (5, "warning")])
def test_more_fronts_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch, fronts: int, state: str) -> None:
    monkeypatch.setattr(doctor_parts, "usable_cores", lambda: 4)
    found = findings(ServerConfig(fronts=fronts))["fronts"]
    assert (found.state, str(fronts) in found.text, "4 cores" in found.text) == (state, True, True)


def test_a_socket_file_is_free_taken_or_impossible_and_none_is_left(tmp_path: Path) -> None:
    path = tmp_path / "speech.sock"
    assert findings(ServerConfig(uds=path))["socket"] == Finding("socket", "ok", f"{path} is free.")
    assert list(tmp_path.iterdir()) == []
    path.write_text("mine")
    found = findings(ServerConfig(uds=path))["socket"]
    assert (found.state, path.read_text()) == ("error", "mine")
    assert "no socket" in found.text
    assert findings(ServerConfig(uds=tmp_path / "no folder" / "speech.sock"))["socket"].state == "error"


def test_a_certificate_needs_its_own_key_which_is_for_its_owner_alone(tmp_path: Path) -> None:
    one, other = make_pair(tmp_path, "one"), make_pair(tmp_path, "other")
    one.key.chmod(0o600)
    config = ServerConfig(ssl_certfile=one.certificate, ssl_keyfile=one.key)
    assert findings(config)["tls"].state == "ok"
    one.key.chmod(0o640)
    found = findings(config)["tls"]
    assert (found.state, found.mend) == ("warning", f"chmod 600 {one.key}")
    wrong = findings(ServerConfig(ssl_certfile=one.certificate, ssl_keyfile=other.key))["tls"]
    assert (wrong.state, "is not that of" in wrong.text) == ("error", True)
    alone = findings(ServerConfig(ssl_keyfile=one.key))["tls"]
    assert (alone.state, "set --ssl-certfile too" in alone.text) == ("error", True)


def test_a_cache_that_cannot_be_kept_is_a_warning_because_speech_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    found = findings(ServerConfig(cache_dir=folder, cache_size_mb=1))["cache"]
    assert (found.state, folder.exists()) == ("ok", False)
    assert "requests with a seed of their own" in found.text
    assert "any seed or none" in findings(ServerConfig(cache_dir=folder, cache_size_mb=1, default_seed=0))["cache"].text
    (folder / "phrases").mkdir(parents=True)
    (folder / "phrases").chmod(0o755)
    found = findings(ServerConfig(cache_dir=folder, cache_size_mb=1))["cache"]
    assert (found.state, found.mend) == ("warning", f"chmod 700 {folder / 'phrases'}")
    (tmp_path / "file").touch()
    assert findings(ServerConfig(cache_dir=tmp_path / "file", cache_size_mb=1))["cache"].state == "warning"


def test_a_watermark_without_its_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(ServerConfig(mark_audio="metadata"))["marks"].text == "Files say that they are synthetic."
    monkeypatch.delitem(sys.modules, "vivavoce_server.perth", raising=False)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    found = findings(ServerConfig(mark_audio="on"))["marks"]
    assert (found.state, "pip install" in found.text) == ("error", True)


def test_a_recognizer_that_is_asked_for_and_missing_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(ref_text_judge="asr")
    monkeypatch.setattr(recognizer, "find_recognizer", lambda: None)
    (found,) = check_judge(config)
    assert (found.state, "pip install 'vivavoce-speech[eval]'" in found.text) == ("error", True)
    monkeypatch.setattr(recognizer, "find_recognizer", lambda: lambda: None)
    (found,) = check_judge(config)
    assert (found.state, found.text) == ("ok", "A speech recognizer is installed, which judges ref_text.")
    for each, is_checked in ((config, True), (EngineConfig(), False)):
        names = [name for name, _ in doctor.all_checks(ServerConfig(), each, launches=False)]
        assert ("ref_text" in names) is is_checked


def test_a_collector_that_is_away_costs_the_spans_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        assert findings(ServerConfig(otlp_endpoint=endpoint))["spans"].state == "ok"
    found = findings(ServerConfig(otlp_endpoint=endpoint))["spans"]
    assert (found.state, endpoint in found.text) == ("warning", True)
    assert findings(ServerConfig(otlp_endpoint="ftp://collector"))["spans"].state == "error"


def test_an_announcement_needs_a_port() -> None:
    found = findings(ServerConfig(wyoming_zeroconf=True))["wyoming"]
    assert (found.state, "10200" in found.text) == ("error", True)
