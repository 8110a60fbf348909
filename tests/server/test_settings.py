"""Flags and environment variables become typed settings."""

import pytest
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.config import explain, load_settings, setting_help
from vivavoce_server.engines import open_engines


def test_defaults_are_those_of_the_two_classes() -> None:
    assert load_settings({}) == (ServerConfig(), EngineConfig())


def test_flags_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_PORT", "9000")
    monkeypatch.setenv("VIVAVOCE_MAX_STREAMS", "3")
    monkeypatch.setenv("VIVAVOCE_URL", "http://elsewhere")
    monkeypatch.setenv("VIVAVOCE_CARD", "multiprocessors=82")
    server, engine = load_settings({"port": "9001", "grace_s": "1.5"})
    assert (server.port, server.grace_s, engine.max_streams) == (9001, 1.5, 3)


@pytest.mark.parametrize(("given", "settled", "rows"), [("auto", "auto", 8), ("5", 5, 5)])
def test_rows_are_a_number_or_auto(given: str, settled: int | str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, by_flag = load_settings({"max_streams": given, "kv_positions": "8192"})
    monkeypatch.setenv("VIVAVOCE_MAX_STREAMS", given)
    monkeypatch.setenv("VIVAVOCE_KV_POSITIONS", "8192")
    _, by_variable = load_settings({})
    assert by_flag == by_variable
    assert (by_flag.max_streams, by_flag.rows, by_flag.kv_positions) == (settled, rows, 8192)


def test_wrong_settings_are_named_in_a_line_without_their_values() -> None:
    with pytest.raises(ValueError, match="2 validation errors") as wrong:
        load_settings({"port": "secret", "runner": "secret"})
    assert explain(wrong.value) == (
        "port: Input should be a valid integer, unable to parse string as an integer; "
        "runner: Input should be 'auto', 'triton' or 'torch'"
    )
    assert explain(ValueError("the key is given twice")) == "the key is given twice"


def test_a_card_is_chosen_by_its_number() -> None:
    engines = open_engines(*load_settings({"device": "cuda:1", "model": ["fake"], "max_voices": "0"}))
    assert engines["fake"].config.device == "cuda:1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": "many"}, "port"),
        ({"port": "70000"}, "port"),
        ({"max_streams": "0"}, "max_streams"),
        ({"max_streams": "1.5"}, "max_streams\n.*must be a whole number above 0, or auto; not '1.5'"),
        ({"max_streams": "many"}, "max_streams\n.*must be a whole number above 0, or auto; not 'many'"),
        ({"max_streams": "-3"}, "max_streams must be above 0, not -3"),
        ({"kv_positions": "none"}, "1 validation error.*\nkv_positions\n.*must be a whole number"),
        ({"kv_positions": "64"}, "kv_positions must be 4096 or more"),
        ({"colour": "red"}, "colour"),
        ({"log_level": "loud"}, "log_level"),
    ],
)
def test_bad_flags_are_named(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_settings(flags)


def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_MAX_STREMS", "3")
    with pytest.raises(ValueError, match="VIVAVOCE_MAX_STREMS"):
        load_settings({})


def test_every_setting_explains_itself() -> None:
    settings = setting_help()
    assert "Port to listen on" in settings["port"]
    assert settings["port"].endswith("[8000]")
    assert settings["max_queue"].endswith("[64]")
