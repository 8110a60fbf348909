"""Command line, environment and a TOML file become typed settings; what is wrong is told in one line."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_server import ServerConfig
from vivavoce_server.config import Settings, load_settings, setting_help
from vivavoce_server.engines import open_engines
from vivavoce_server.setting_groups import GROUPS, OTHERS, grouped
from vivavoce_server.setting_sources import SettingError, flag_of
from vivavoce_server.setting_texts import is_switch


def write(folder: Path, text: str) -> str:
    path = folder / "server.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_are_those_of_the_two_classes() -> None:
    assert load_settings({}) == (ServerConfig(), EngineConfig())


def test_the_command_line_comes_before_the_environment_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'port = 7000\nmax-streams = 2\nmax_queue = 5\ngrace-s = 9\nmodel = ["fake", "b=c"]\n')
    monkeypatch.setenv("VIVAVOCE_PORT", "9000")
    monkeypatch.setenv("VIVAVOCE_MAX_STREAMS", "3")
    monkeypatch.setenv("VIVAVOCE_URL", "http://elsewhere")
    monkeypatch.setenv("VIVAVOCE_CARD", "multiprocessors=82")
    monkeypatch.setenv("VIVAVOCE_CPU_LEVEL", "avx2")
    monkeypatch.setenv("VIVAVOCE_KERNELS", "none")
    server, engine = load_settings({"port": "9001", "grace_s": "1.5", "config": file})
    assert (server.port, server.grace_s, engine.max_streams, engine.max_queue) == (9001, 1.5, 3, 5)
    assert server.model == ("fake", "b=c")
    monkeypatch.setenv("VIVAVOCE_CONFIG", file)
    assert load_settings({})[0].port == 9000
    monkeypatch.delenv("VIVAVOCE_PORT")
    assert load_settings({})[0].port == 7000
    assert load_settings({"config": ""})[0].port == 8000, "no file"


def test_a_file_takes_toml_s_own_types(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'eager = true\nstrict-text = false\nnormalize = ["urls"]\ncors-origins = "a, b"\nstall_s = 2\n'
    )
    server, engine = load_settings({"config": file})
    assert (engine.eager, server.strict_text, server.normalize) == (True, False, ("urls",))
    assert server.stall_s == 2.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "FILE: there is no setting prot; did you mean port?"),
        ("max-strems = 1", "FILE: there is no setting max-strems; did you mean max-streams?"),
        ("zzz = 1", "FILE: there is no setting zzz"),
        ('config = "other.toml"', "FILE: there is no setting config"),
        ("max-queue = 1\nmax_queue = 2", "FILE: max_queue is set twice"),
        ("[port]\nnumber = 1", "FILE: port is a table; settings are plain lines, such as port = 8000"),
        ("port = 70000", "port in FILE must be a whole number from 0 to 65535"),
        ("port = true", "port in FILE must be a whole number from 0 to 65535"),
        ("max-streams = true", "max-streams in FILE must be a whole number above 0 and at most 4096, or auto"),
        ("max-streams = 1.5", "max-streams in FILE must be a whole number above 0 and at most 4096, or auto"),
        ("host = 5", "host in FILE must be a text"),
        ("model = [1]", "model in FILE must be a list of words, or words between commas"),
        ("stall-s = nan", "stall-s in FILE must be a number above 0"),
        ('eager = "maybe"', "eager in FILE must be true or false"),
        ('runner = "tritn"', "runner in FILE must be one of auto, triton, native, torch; did you mean triton?"),
        ('voices-dir = "a\\u0000b"', "voices-dir in FILE has a character that cannot be used"),
        ("api-keys = 5", "api-keys in FILE must be a list of words, or words between commas"),
        ('api-keys = ["sk-1", 7]', "api-keys in FILE must be a list of words, or words between commas"),
        ("port = ", "--config: FILE is no TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 100_000, "--config: FILE is no TOML: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingError) as refused:
        load_settings({"config": file})
    told = str(refused.value)
    assert told.startswith(said.replace("FILE", file))
    assert len(told.splitlines()) == 1
    if not text.startswith("a = "):
        assert told == said.replace("FILE", file)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (Path.mkdir, "is no regular file"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.write_bytes(b"host = '\xff'"), "is not UTF-8"),
        (lambda path: path.write_bytes(b"#" * (2**20 + 1)), "is larger than 1048576 bytes"),
    ],
    ids=["missing", "folder", "fifo", "device", "latin", "huge"],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "server.toml"
    make(path)
    with pytest.raises(SettingError, match=said) as refused:
        load_settings({"config": str(path)})
    assert str(refused.value).startswith(f"--config: {path} ")


@pytest.mark.parametrize(("given", "settled", "rows"), [("auto", "auto", 8), ("5", 5, 5)])
def test_rows_are_a_number_or_auto(given: str, settled: int | str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, by_flag = load_settings({"max_streams": given, "kv_positions": "8192"})
    monkeypatch.setenv("VIVAVOCE_MAX_STREAMS", given)
    monkeypatch.setenv("VIVAVOCE_KV_POSITIONS", "8192")
    _, by_variable = load_settings({})
    assert by_flag == by_variable
    assert (by_flag.max_streams, by_flag.rows, by_flag.kv_positions) == (settled, rows, 8192)


def test_wrong_settings_are_named_together_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_RUNNER", "tritn")
    with pytest.raises(SettingError) as refused:
        load_settings({"port": "abc"})
    assert str(refused.value) == (
        "--port must be a whole number from 0 to 65535; "
        "VIVAVOCE_RUNNER must be one of auto, triton, native, torch; did you mean triton?"
    )


def test_a_card_is_chosen_by_its_number() -> None:
    engines = open_engines(*load_settings({"device": "cuda:1", "model": ["fake"], "max_voices": "0"}))
    assert engines["fake"].config.device == "cuda:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": "70000"}, "--port must be a whole number from 0 to 65535"),
        ({"port": "9" * 5000}, "--port must be a whole number from 0 to 65535"),
        ({"max_streams": "0"}, "--max-streams must be a whole number above 0 and at most 4096, or auto"),
        ({"max_streams": "-3"}, "--max-streams must be a whole number above 0 and at most 4096, or auto"),
        ({"max_context": "1000000000"}, "--max-context must be a whole number above 0 and at most 1048576"),
        ({"kv_positions": "none"}, "--kv-positions must be a whole number above 0 and at most 1073741824, or auto"),
        (
            {"kv_positions": "64"},
            "--kv-positions must be 4096 or more, so that one utterance of max_context fits; not 64",
        ),
        ({"workers": "257"}, "--workers must be a whole number above 0 and at most 256"),
        ({"gpu_memory": "2"}, "--gpu-memory must be a share of at most 1, such as 0.9, not 2"),
        ({"stall_s": "inf"}, "--stall-s must be a number above 0"),
        ({"host": ""}, "--host must be a text"),
        ({"host": "\udcff"}, "--host has a character that cannot be used"),
        ({"colour": "red"}, "there is no setting colour"),
        ({"max_stream": "red"}, "there is no setting max_stream; did you mean max_streams?"),
        ({"load": "on demand"}, "--load must be one of start, on-demand; did you mean on-demand?"),
        ({"voice_aliases": "x"}, "--voice-aliases: must be NAME=VOICE, not 'x'"),
        ({"log_format": "line\nbreak"}, r"--log-format must be one of text, json"),
    ],
)  # fmt: skip
def test_bad_flags_are_named(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError) as refused:
        load_settings(flags)
    assert str(refused.value) == said


@pytest.mark.parametrize("name", Settings.model_fields)
@pytest.mark.parametrize("value", ["abc", "", "-1", "nan", "1e400", "9" * 5000, "\0", "\udc80", "a\nb", "\u202e"])
def test_no_value_of_any_setting_is_more_than_a_line(name: str, value: str) -> None:
    """Each value is either taken, or refused with the option's name."""
    try:
        load_settings({name: value})
    except SettingError as refused:
        told = str(refused)
        assert told.startswith(flag_of(name))
        assert len(told.splitlines()) == 1
        assert len(told) < 500
        assert "pydantic" not in told
        assert "Input should" not in told


def test_an_empty_text_takes_an_optional_setting_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_VOICES_DIR", "/somewhere")
    assert load_settings({"voices_dir": ""})[0].voices_dir is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("garbage", "VIVAVOCE_CARD has an unknown field 'garbage'; it knows "),
        ("capability=x", "VIVAVOCE_CARD: capability must be like 8.6, not 'x'"),
    ],
)
def test_a_wrong_card_is_told_before_the_model_loads(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_CARD", value)
    with pytest.raises(SettingError) as refused:
        load_settings({})
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("variable", ["VIVAVOCE_MAX_STREMS", "VIVAVOCE_max_streams"])
def test_an_unknown_variable_is_refused_by_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(SettingError) as refused:
        load_settings({})
    assert str(refused.value) == (
        f"the environment variable {variable} is not a setting of Vivavoce; did you mean VIVAVOCE_MAX_STREAMS?"
    )


@pytest.mark.parametrize(("variable", "value"), [(LEVEL_VARIABLE, "avx2"), ("VIVAVOCE_KERNELS", "none")])
def test_variables_of_the_kernels_are_no_settings(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    load_settings({})


def test_every_setting_explains_itself() -> None:
    texts = setting_help()
    assert "Port to listen on" in texts["port"]
    assert texts["port"].endswith("[8000]")
    assert texts["eager"].endswith("[off]")
    assert texts["strict_text"].endswith("[on]")
    assert not any("[()]" in text or "[None]" in text for text in texts.values())


def test_every_setting_is_in_one_group_of_the_help() -> None:
    placed = Counter(name for names in GROUPS.values() for name in names)
    assert placed == Counter(Settings.model_fields.keys())
    assert grouped(["port", "a_new_one"]) == {"network": ["port"], OTHERS: ["a_new_one"]}


def test_every_truth_value_is_a_switch() -> None:
    switches = {name for name, field in Settings.model_fields.items() if is_switch(field)}
    assert switches == {name for name, field in Settings.model_fields.items() if isinstance(field.default, bool)}
    assert {"eager", "deterministic", "strict_text", "wyoming_zeroconf"} <= switches
